//! Defines the driver's status and counters, with texts for users.

use super::memory::Reason;
use super::queues::Queue;
use core::fmt;
use hotmem::PfnRange;

/// The state of the device and its balloon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The balloon has the size that the host requests.
    Settled,
    /// The balloon is being inflated or deflated.
    Resizing,
    /// The requested size cannot be reached at the moment. The driver retries at long intervals,
    /// and at once when the host requests another size.
    Pending(Pending),
    /// The driver has stopped because the device cannot be trusted. Memory that the device holds
    /// stays out of use until the device is reset.
    Failed(Failure),
}

/// The reason why the balloon does not have the requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The device does not answer on this queue. A late answer is still accepted.
    NoAnswer(Queue),
    /// The host changes its request faster than the driver can follow.
    TargetUnsteady,
    /// The guest took memory back because it ran out of memory.
    GuestNeedsMemory,
    /// The kernel can give no memory, for this reason.
    Memory(Reason),
}

/// The reason why the driver has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device answered on this queue without a request.
    Stray(Queue),
    /// The kernel's memory manager returned this range, which does not match the request. The
    /// device is not at fault.
    WrongRange(PfnRange),
    /// The device corrupted this queue.
    Queue(Queue),
    /// The configuration space cannot be read or written any more.
    ConfigSpace,
    /// The device was reset repeatedly for this cause, and has not answered any request in between.
    /// The device holds no memory of the kernel.
    Resets(ResetCause),
    /// The device had to be reset for this cause, and its reset did not complete.
    Stuck(ResetCause),
    /// The device was reset for this cause, and could not be started again. The device holds no
    /// memory of the kernel.
    NotRestarted(ResetCause),
}

/// The cause of a reset of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// The device did not answer on this queue for too long.
    NoAnswer(Queue),
    /// The device has met an error that only a reset ends (`DEVICE_NEEDS_RESET`).
    NeedsReset,
    /// The device's status says that the device has failed, or has reset itself.
    NotRunning,
    /// The kernel has restarted the device.
    Restart,
}

impl Failure {
    /// Returns whether the device was reset and holds no memory of the kernel any more. If so, the
    /// kernel can continue without a balloon. If not, the device may still write to memory of the
    /// balloon until the kernel resets the device.
    #[must_use]
    pub fn device_holds_no_memory(&self) -> bool {
        match self {
            Failure::Resets(_) | Failure::NotRestarted(_) => true,
            Failure::Stray(_)
            | Failure::WrongRange(_)
            | Failure::Queue(_)
            | Failure::ConfigSpace
            | Failure::Stuck(_) => false,
        }
    }
}

/// Counters of events. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were inflated.
    pub inflated_frames: u64,
    /// Frames that were deflated.
    pub deflated_frames: u64,
    /// Reports that the device took.
    pub reports: u64,
    /// Frames in these reports.
    pub reported_frames: u64,
    /// Frames of reports and inflate requests that the device says it has initialised.
    pub initialised_frames: u64,
    /// Answers that say that the device has initialised more than it was given. They are not
    /// believed.
    pub invalid_answers: u64,
    /// Hints that the device took.
    pub hints: u64,
    /// Frames in these hints.
    pub hinted_frames: u64,
    /// Statistics sent.
    pub statistics: u64,
    /// Requests that were not answered in time.
    pub overdue_requests: u64,
    /// Resets of the device.
    pub resets: u64,
}

impl Counters {
    /// Returns a number that every answer but that with statistics changes.
    #[cfg(feature = "virtio-drivers")]
    pub(super) fn answers(&self) -> u64 {
        [self.inflated_frames, self.deflated_frames, self.reports, self.hints]
            .into_iter()
            .fold(0, u64::wrapping_add)
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Pending::NoAnswer(queue) => write!(f, "the device does not answer on queue {queue:?}"),
            Pending::TargetUnsteady => f.write_str("the host keeps changing its request"),
            Pending::GuestNeedsMemory => f.write_str("the guest needs the memory"),
            Pending::Memory(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Failure::Stray(queue) => {
                write!(f, "the device answered on queue {queue:?} without a request")
            }
            Failure::WrongRange(range) => {
                write!(f, "the memory manager returned {range}, which does not match the request")
            }
            Failure::Queue(queue) => write!(f, "the device corrupted queue {queue:?}"),
            Failure::ConfigSpace => {
                f.write_str("the configuration space cannot be accessed any more")
            }
            Failure::Resets(cause) => {
                write!(f, "{cause}, even after resets")
            }
            Failure::Stuck(cause) => write!(f, "{cause}, and does not complete its reset"),
            Failure::NotRestarted(cause) => write!(f, "{cause}, and cannot be started again"),
        }
    }
}

impl fmt::Display for ResetCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResetCause::NoAnswer(queue) => {
                write!(f, "the device does not answer on queue {queue:?}")
            }
            ResetCause::NeedsReset => f.write_str("the device needs a reset"),
            ResetCause::NotRunning => f.write_str("the device does not run any more"),
            ResetCause::Restart => f.write_str("the device was restarted"),
        }
    }
}

impl core::error::Error for Failure {}
