//! Defines the driver's status and counters, with texts for users.

use super::config_error::ConfigError;
use super::reason::Reason;
use super::request::ResponseError;
use core::fmt;
use hotmem::{Bytes, PfnRange};

/// The state of the device and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The driver is finding out by STATE requests which blocks are plugged.
    Synchronising,
    /// The driver is plugging or unplugging towards the requested size.
    Resizing,
    /// The requested size is plugged and online.
    Reached,
    /// The requested size cannot be reached at the moment. The driver retries at long intervals if
    /// that can help, and at once when the requested size changes.
    Pending(Pending),
    /// The driver has stopped because the device cannot be trusted. Plugged memory stays usable.
    Failed(Failure),
}

/// The reason why the requested size is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The device answers NACK.
    Nack,
    /// The device answers BUSY.
    Busy,
    /// The device answers ERROR.
    DeviceError,
    /// The device does not answer. A late answer is still accepted.
    NoAnswer,
    /// The requested size exceeds the usable region.
    UsableRegion,
    /// The requested size changes faster than the driver can follow.
    TargetUnsteady,
    /// The device's `plugged_size` disagrees with the states of its blocks.
    PluggedSize,
    /// The memory manager cannot prepare memory or put it online, for this reason.
    Memory(Reason),
    /// The rest of the device's region cannot be used, for this reason. For example, it shares a
    /// section with memory of another node.
    Region {
        /// The requested size.
        requested: Bytes,
        /// The part of the requested size that can be plugged.
        reachable: Bytes,
        /// Why the rest cannot be plugged.
        reason: Reason,
    },
    /// As much memory is plugged as possible, because the requested size is not a whole number of
    /// units or exceeds the region. The driver does not retry until the requested size changes.
    Units {
        /// The requested size.
        requested: Bytes,
        /// The part of the requested size that can be plugged.
        reachable: Bytes,
        /// The size of a unit.
        unit: Bytes,
    },
}

/// The reason why the driver has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The configuration is invalid.
    Config(ConfigError),
    /// The configuration space cannot be read any more.
    ConfigSpace,
    /// The device does not run any more: it has failed or is gone, it could not be started again, or
    /// it has stopped repeatedly without an answer in between. The kernel can start it again.
    NotRunning,
    /// An answer is not a valid response.
    Response(ResponseError),
    /// The memory manager refuses the region, for this reason.
    Region(Reason),
    /// The device reports that this memory, which is in use, is not plugged.
    Lost(PfnRange),
    /// The device unplugged a part of this range, which the driver or the memory manager cannot
    /// divide further. The range stays isolated.
    HalfUnplugged(PfnRange),
    /// The device reports that this single block is partly plugged.
    MixedBlock(PfnRange),
    /// `plugged_size` disagrees with the states of the blocks repeatedly.
    PluggedSize {
        /// `plugged_size`.
        claimed: Bytes,
        /// The size of all plugged blocks.
        found: Bytes,
    },
    /// The memory manager returned a range that does not match the request.
    WrongRange(PfnRange),
}

/// Why a device that has stopped was reset and started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// The device has met an error that only a reset ends (`DEVICE_NEEDS_RESET`).
    NeedsReset,
    /// The device has reset itself.
    ResetItself,
}

/// Counters of events. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests sent.
    pub requests: u64,
    /// Requests acknowledged.
    pub acks: u64,
    /// Requests answered NACK.
    pub nacks: u64,
    /// Requests answered BUSY.
    pub busy_answers: u64,
    /// Requests answered ERROR.
    pub errors: u64,
    /// Answers that were not valid responses.
    pub malformed_answers: u64,
    /// Answers without a request.
    pub stray_answers: u64,
    /// Requests that were not answered in time.
    pub overdue_requests: u64,
    /// Walks over the blocks to find out which are plugged.
    pub resyncs: u64,
    /// Operations that the driver postponed because they were not possible yet.
    pub postponed_operations: u64,
}

impl Statistics {
    /// Returns the number of valid answers.
    #[cfg(feature = "virtio-drivers")]
    pub(super) fn answers(&self) -> u64 {
        [self.nacks, self.busy_answers, self.errors].into_iter().fold(self.acks, u64::wrapping_add)
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Pending::Nack => "the device answers NACK",
            Pending::Busy => "the device answers BUSY",
            Pending::DeviceError => "the device answers ERROR",
            Pending::NoAnswer => "the device does not answer",
            Pending::UsableRegion => "the requested size exceeds the usable region",
            Pending::TargetUnsteady => "the requested size keeps changing",
            Pending::PluggedSize => "plugged_size disagrees with the device's blocks",
            Pending::Memory(reason) => return reason.fmt(f),
            Pending::Region { requested, reachable, reason } => {
                return write!(
                    f,
                    "the requested size is {requested}, of which {reachable} can be plugged, because {reason}"
                );
            }
            Pending::Units { requested, reachable, unit } => {
                return write!(
                    f,
                    "the requested size is {requested}, of which {reachable} can be plugged in units of {unit}"
                );
            }
        })
    }
}

impl fmt::Display for ResetCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResetCause::NeedsReset => "the device needs a reset",
            ResetCause::ResetItself => "the device has reset itself",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Failure::Config(error) => write!(f, "configuration: {error}"),
            Failure::ConfigSpace => f.write_str("the configuration space cannot be read any more"),
            Failure::NotRunning => f.write_str("the device does not run any more"),
            Failure::Response(error) => write!(f, "response: {error}"),
            Failure::Region(reason) => write!(f, "region: {reason}"),
            Failure::Lost(range) => {
                write!(f, "the device reports that {range}, which is in use, is not plugged")
            }
            Failure::HalfUnplugged(range) => {
                write!(f, "the device unplugged only a part of {range}")
            }
            Failure::MixedBlock(range) => {
                write!(f, "the device reports that the single block {range} is partly plugged")
            }
            Failure::PluggedSize { claimed, found } => {
                write!(
                    f,
                    "plugged_size is {claimed}, but the size of all plugged blocks is {found}"
                )
            }
            Failure::WrongRange(range) => {
                write!(f, "the memory manager returned {range}, which does not match the request")
            }
        }
    }
}

impl core::error::Error for Failure {}
