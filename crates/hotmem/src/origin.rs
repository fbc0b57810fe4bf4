//! Whose a token is: what one machine has made, every other refuses.
//!
//! Machines are plain values, and one process can have many. So whatever a caller carries from one
//! call to another remembers the machine that it came from, by a number that no two things in the
//! process share; the call that takes it compares two numbers, on the control path only.

use crate::sync::{Ordering, settled};

/// A machine, distinct from every other that this process has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MachineId(pub(crate) u64);

/// A number that was never given before.
pub(crate) fn unique() -> u64 {
    static LAST: settled::AtomicU64 = settled::AtomicU64::new(0);
    // Relaxed: that no two are alike is all that matters.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
