//! Numbers the machines of a process, so that each refuses the tokens of the others.
//!
//! Machines are plain values, and one process can have many. So each token that a caller carries
//! from one call to another keeps the number of the machine that made it; no two machines of the
//! process share a number. The call that takes the token compares two numbers, on the control path
//! only.

use crate::sync::{Ordering, settled};

/// A machine, distinct from every other that this process has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MachineId(pub(crate) u64);

/// Returns a number that it has not returned before.
pub(crate) fn unique() -> u64 {
    static LAST: settled::AtomicU64 = settled::AtomicU64::new(0);
    // Relaxed: the numbers only have to differ.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
