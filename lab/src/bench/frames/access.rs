//! The access patterns that the bench measures.

use super::value_name::value_name;
use std::fmt;

/// An access pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Access {
    /// Allocate one run and free it
    Pair,
    /// Allocate many runs, then free them in the same order. All threads allocate at the same
    /// time, and then all threads free
    Bulk,
    /// Free a random one of the held allocations, then allocate one
    Random,
    /// One CPU allocates runs and passes them through a ring of 256 entries to another CPU, which
    /// frees them. The CPUs are two threads, or one thread acts as both in turn
    RemoteFree,
    /// Pair, in which each 8th pair is a simulated interrupt, nested in another pair on the same
    /// CPU
    Interrupts,
    /// Free a random one of the held allocations, then allocate one. 90 %, 9 % and 1 % of the
    /// allocations have the orders 0, 3 and 9
    Mixed,
    /// Ask for a run that is not free
    Refused,
    /// No allocation: boot a machine with all of the memory
    Init,
    /// No allocation: announce all of the memory on a small machine
    Announce,
    /// No allocation: announce, add and online all of the memory on a small machine
    AnnounceAddOnline,
}

impl Access {
    /// Returns whether the pattern measures the start of a machine instead of allocations.
    pub(super) const fn is_start(self) -> bool {
        matches!(self, Access::Init | Access::Announce | Access::AnnounceAddOnline)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
