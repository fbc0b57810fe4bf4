//! Gives each machine of a process a number, so that a machine can refuse the tokens of the others.
//!
//! One process can have many machines. No two machines of a process have the same number. Each
//! token that a caller carries from one call to another has the number of the machine that made it.
//! The call that takes the token compares this number with that of its own machine. Only calls of
//! the control path and of the reporter take tokens.

use crate::sync::{Ordering, settled};

/// The identity of a machine, which differs from that of every other machine that this process has
/// had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MachineId(pub(crate) u64);

/// Returns a number that no earlier call has returned.
pub(crate) fn unique() -> u64 {
    static LAST: settled::AtomicU64 = settled::AtomicU64::new(0);
    // Relaxed: the numbers only have to differ.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
