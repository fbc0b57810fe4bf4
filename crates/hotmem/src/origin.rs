//! Numbers the machines of a process, so that each refuses the tokens of the others.
//!
//! One process can have many machines. So each token that a caller carries from one call to another
//! has the number of the machine that made it, and no two machines of the process have the same
//! number. The call that takes the token compares the two numbers. That happens on the control path
//! only.

use crate::sync::{Ordering, settled};

/// The identity of a machine, which differs from that of every other machine that this process has
/// had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MachineId(pub(crate) u64);

/// Returns a number that it has not returned before.
pub(crate) fn unique() -> u64 {
    static LAST: settled::AtomicU64 = settled::AtomicU64::new(0);
    // Relaxed: the numbers only have to differ.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
