//! Gives each instance (a `Frames` and its `Hotplug`) a number, so that an instance can drop the
//! tokens of the others.
//!
//! One process can have many instances. No two of them have the same number. Each token that a
//! caller carries from one call to another has the number of the instance that made it. The call
//! that takes the token compares this number with that of its own instance. Only calls of the
//! control path and of the reporter take tokens.

use crate::sync::{Ordering, untracked};

/// The identity of an instance, which differs from that of every other instance that this process
/// has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct InstanceId(pub(crate) u64);

/// Returns a number that no earlier call has returned.
pub(crate) fn unique() -> u64 {
    static LAST: untracked::AtomicU64 = untracked::AtomicU64::new(0);
    // Relaxed: the numbers only have to differ.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
