//! What happens to extents and to requests of a device.

use crate::kernel::cxl::error::from_reasons;
use core::fmt;
use hotmem::{AddError, Blocker, PfnRange, RangeError};
use hotmem_cxl::command::AnswerError;
use hotmem_cxl::{CapacityError, DeviceError, MailboxError};

/// What has happened to an extent, or to a request of the device.
pub(crate) enum Outcome<'a> {
    /// It is online.
    Added(PfnRange),
    /// It was given back.
    Removed(PfnRange),
    /// It was refused, or stays in use.
    Refused(PfnRange, &'a dyn fmt::Display),
    /// The device has lost this number of events, because its log was full.
    EventsLost(u16),
    /// An event asks for something impossible, and is ignored.
    Ignored(CapacityError),
    /// A request has ended with this error.
    Failed(&'a DynamicError),
    /// The device is not served any more.
    GivenUp,
}

/// The reason why an extent is not used, or not given back.
pub(super) enum Obstacle {
    /// The extent is not whole pageblocks within the addresses that are routed to the device.
    Addresses,
    Add(AddError),
    Online(RangeError),
    Offline(RangeError),
    Blocked(Blocker),
}

/// The reason why a request has failed.
pub(crate) enum DynamicError {
    Device(DeviceError),
    Mailbox(MailboxError),
    Answer(AnswerError),
    Capacity(CapacityError),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Addresses => f.write_str("the extent is not whole pageblocks of the window"),
            Obstacle::Add(error) => error.fmt(f),
            Obstacle::Online(error) | Obstacle::Offline(error) => error.fmt(f),
            Obstacle::Blocked(blocker) => blocker.fmt(f),
        }
    }
}

impl DynamicError {
    /// Returns whether it is unknown after the error what the device has.
    pub(super) fn is_final(&self) -> bool {
        match self {
            DynamicError::Device(_) => true,
            DynamicError::Mailbox(error) => !matches!(error, MailboxError::Refused { .. }),
            DynamicError::Answer(_) | DynamicError::Capacity(_) => false,
        }
    }
}

from_reasons!(
    DynamicError:
    Device(DeviceError),
    Mailbox(MailboxError),
    Answer(AnswerError),
    Capacity(CapacityError)
);

impl fmt::Display for DynamicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DynamicError::Device(error) => error.fmt(f),
            DynamicError::Mailbox(error) => error.fmt(f),
            DynamicError::Answer(error) => error.fmt(f),
            DynamicError::Capacity(error) => error.fmt(f),
        }
    }
}
