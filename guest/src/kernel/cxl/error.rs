//! The reasons why a device is not used.

use crate::kernel::dax::DaxError;
use crate::kernel::memory::MapError;
use core::fmt;
use hotmem_cxl::command::AnswerError;
use hotmem_cxl::config::{BlockKind, ConfigError};
use hotmem_cxl::plan::{PlanError, PlanFailure};
use hotmem_cxl::{DecoderError, DeviceError, MailboxError, READY_LIMIT};

/// The reason why a device, or the memory of several devices, is not used.
pub(crate) enum CxlError {
    /// There are more devices, or bridges, than the kernel has room for.
    TooMany,
    /// There is no memory-mapped access to the configuration space.
    NoExtendedConfig,
    /// No port leads to the device.
    NoPort,
    /// The device does not have these registers, or not within a BAR.
    NoRegisters(BlockKind),
    NoDecoders,
    /// The memory or the mailbox does not get ready.
    NotReady,
    /// The memory cannot be used until the device is reset or replaced.
    Failed,
    /// The firmware has routed addresses to the device by its range registers.
    UsedByFirmware,
    /// The device has neither memory nor dynamic capacity.
    NoMemory,
    /// No window is routed to this device, or not for so many devices in turn.
    NoWindow,
    Config(ConfigError),
    Device(DeviceError),
    Decoder(DecoderError),
    Mailbox(MailboxError),
    Answer(AnswerError),
    Plan(PlanError),
    Failure(PlanFailure),
    Map(MapError),
    Memory(DaxError),
}

/// Implements `From` for the variants of an error that have a reason.
macro_rules! from_reasons {
    ($error:ident: $($variant:ident($reason:ty)),*) => {
        $(impl From<$reason> for $error {
            fn from(reason: $reason) -> Self {
                $error::$variant(reason)
            }
        })*
    };
}
pub(super) use from_reasons;

from_reasons!(
    CxlError:
    Config(ConfigError),
    Device(DeviceError),
    Decoder(DecoderError),
    Mailbox(MailboxError),
    Answer(AnswerError),
    Plan(PlanError),
    Failure(PlanFailure),
    Map(MapError),
    Memory(DaxError)
);

impl fmt::Display for CxlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CxlError::TooMany => f.write_str("there are too many devices or bridges"),
            CxlError::NoExtendedConfig => f.write_str("configuration space is not memory-mapped"),
            CxlError::NoPort => f.write_str("no port leads to the device"),
            CxlError::NoRegisters(kind) => write!(f, "the device has no {kind:?} registers"),
            CxlError::NoDecoders => f.write_str("the device has no decoders"),
            CxlError::NotReady => write!(f, "the device is not ready after {READY_LIMIT:?}"),
            CxlError::Failed => f.write_str("the memory of the device has failed"),
            CxlError::UsedByFirmware => {
                f.write_str("the firmware has set the device's range registers")
            }
            CxlError::NoMemory => f.write_str("the device has no memory"),
            CxlError::NoWindow => f.write_str("no window is for the device"),
            CxlError::Config(error) => error.fmt(f),
            CxlError::Device(error) => error.fmt(f),
            CxlError::Decoder(error) => error.fmt(f),
            CxlError::Mailbox(error) => error.fmt(f),
            CxlError::Answer(error) => error.fmt(f),
            CxlError::Plan(error) => error.fmt(f),
            CxlError::Failure(error) => error.fmt(f),
            CxlError::Map(error) => error.fmt(f),
            CxlError::Memory(error) => error.fmt(f),
        }
    }
}
