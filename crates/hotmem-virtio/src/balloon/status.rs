//! How the driver stands: what it says to people.

use super::queues::Queue;
use core::fmt;
use hotmem::PfnRange;

/// How the device and its balloon stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The balloon has the size that the host wants.
    Settled,
    /// On the way there.
    Resizing,
    /// The size cannot be reached for now. The driver keeps trying, seldom, or at once when the
    /// host wants something else.
    Pending(Pending),
    /// The device is not to be trusted and is left alone. What it had stays out of use until it is
    /// reset.
    Failed(Failure),
}

/// The reason why the balloon does not have its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The device does not answer on this queue. Its answer is still accepted, whenever it comes.
    NoAnswer(Queue),
    /// The host changes what it wants faster than anything can be done.
    TargetUnsteady,
    /// The guest took memory back because it ran out.
    Needed,
    /// The kernel has nothing to give, for this reason.
    Memory(&'static str),
}

/// The reason why a device is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It answered something on this queue that was not asked.
    Stray(Queue),
    /// The kernel offered this range, which was not asked for. The device is not to blame.
    Memory(PfnRange),
    /// It broke this queue.
    Queue(Queue),
    /// Its configuration space cannot be read, or written, any more.
    ConfigSpace,
    /// It answered nothing on this queue, several times, and was reset each time. Nothing of the
    /// kernel's memory is left with it.
    Silent(Queue),
    /// It answered nothing on this queue, and then did not end its reset.
    Stuck(Queue),
    /// It answered nothing on this queue, was reset, and did not start again. Nothing of the
    /// kernel's memory is left with it.
    Restart(Queue),
}

impl Failure {
    /// Returns whether the device was reset and has nothing of the kernel's memory any more: the
    /// kernel goes on as one without a balloon. After any other failure the device may still write
    /// to what it was given, until the kernel resets it.
    #[must_use]
    pub fn leaves_nothing_behind(&self) -> bool {
        match self {
            Failure::Silent(_) | Failure::Restart(_) => true,
            Failure::Stray(_)
            | Failure::Memory(_)
            | Failure::Queue(_)
            | Failure::ConfigSpace
            | Failure::Stuck(_) => false,
        }
    }
}

/// What happened so far. Counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that went into the balloon.
    pub inflated: u64,
    /// Frames that came out of it.
    pub deflated: u64,
    /// Reports that the device took.
    pub reports: u64,
    /// Frames in them.
    pub reported: u64,
    /// Hints that the device took.
    pub hints: u64,
    /// Frames in them.
    pub hinted: u64,
    /// Statistics sent.
    pub statistics: u64,
    /// Requests that were not answered in time.
    pub overdue: u64,
    /// Resets of the device because it was silent.
    pub resets: u64,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Pending::NoAnswer(queue) => write!(f, "the device does not answer: {queue:?}"),
            Pending::TargetUnsteady => f.write_str("the host keeps changing what it wants"),
            Pending::Needed => f.write_str("the guest needs the memory"),
            Pending::Memory(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Failure::Stray(queue) => write!(f, "an answer to nothing: {queue:?}"),
            Failure::Memory(range) => write!(f, "memory manager offered {range}"),
            Failure::Queue(queue) => write!(f, "the device broke its queue: {queue:?}"),
            Failure::ConfigSpace => {
                f.write_str("the configuration space cannot be accessed any more")
            }
            Failure::Silent(queue) => write!(f, "the device does not answer: {queue:?}"),
            Failure::Stuck(queue) => {
                write!(f, "the device neither answers nor ends its reset: {queue:?}")
            }
            Failure::Restart(queue) => {
                write!(f, "the device did not answer, and does not start again: {queue:?}")
            }
        }
    }
}

impl core::error::Error for Failure {}
