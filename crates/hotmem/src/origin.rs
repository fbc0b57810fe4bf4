//! Whose a token is: what one machine has made, every other refuses.
//!
//! Machines are plain values, and one process can have many. So whatever a caller carries from one
//! call to another remembers the machine that it came from, by a number that no two things in the
//! process share; the call that takes it compares two numbers, on the control path only.

use crate::frames::Frames;
use crate::sync::{Ordering, settled};
use core::fmt;

/// A machine, distinct from every other that this process has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MachineId(pub(crate) u64);

/// What another machine has made. Nothing has changed, and here it is again. A kernel that runs on
/// one machine never meets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foreign<T>(pub T);

/// Something that only the machine that made it may take.
pub(crate) trait Token: Sized {
    /// Which one that is.
    fn machine(&self) -> MachineId;

    /// The token, if it is this machine's.
    fn of<P>(self, frames: &Frames<P>) -> Result<Self, Foreign<Self>> {
        if self.machine() == frames.id() { Ok(self) } else { Err(Foreign(self)) }
    }
}

/// A number that was never given before.
pub(crate) fn unique() -> u64 {
    static LAST: settled::AtomicU64 = settled::AtomicU64::new(0);
    // Relaxed: that no two are alike is all that matters.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl<T> fmt::Display for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it belongs to another machine")
    }
}

impl<T: fmt::Debug> core::error::Error for Foreign<T> {}
