//! The access patterns that the bench measures.

use super::names::value_name;
use std::fmt;

/// An access pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Access {
    /// Allocate one and free it
    Pair,
    /// Allocate many, then free them in the same order; all threads allocate at the same time, and
    /// then all free
    Bulk,
    /// With all memory in use: free a random one of those held, allocate one
    Random,
    /// One CPU allocates and passes the frames through a ring of 256 entries to another CPU, which
    /// frees them. Two threads, or one that acts as both CPUs in turn
    RemoteFree,
    /// Pair, in which each 8th pair is a simulated interrupt, nested in another pair on the same
    /// CPU
    Interrupts,
    /// 90 %, 9 % and 1 % of orders 0, 3 and 9: free a random one of those held, allocate one
    Mixed,
    /// Pair, with each thread in a pageblock beside the next thread's
    PairNeighbours,
    /// Bulk, with each thread in every this many-th pageblock
    BulkNeighbours,
    /// Pair, of movable frames on a machine without movable memory
    PairWithoutMovable,
    /// Pair without movable memory, after 64 CPUs have allocated
    #[value(name = "pair-without-movable-64-cpus")]
    PairWithoutMovable64Cpus,
    /// Pair, near each of 4 nodes in turn, each of which has a quarter of the memory
    PairNear,
    /// Pair, near each of 4 nodes in turn, where the node changes every 256 MiB
    PairNearAlternating,
    /// Pair, on each of 4 nodes in turn and on no other, each of which has a quarter of the memory
    PairOnly,
    /// Pair, on each of 4 nodes in turn and on no other, where the node changes every 256 MiB
    PairOnlyAlternating,
    /// No allocation: boot a machine with all of the memory
    Init,
    /// No allocation: announce all of the memory on a small machine, which initialises its words
    Announce,
    /// No allocation: announce, add and online all of the memory on a small machine
    #[value(name = "announce-add-online")]
    Hotplug,
}

impl Access {
    /// All of them, the default set first.
    const ALL: [Access; 17] = [
        Access::Pair,
        Access::Bulk,
        Access::Random,
        Access::RemoteFree,
        Access::Interrupts,
        Access::Mixed,
        Access::PairNeighbours,
        Access::BulkNeighbours,
        Access::PairWithoutMovable,
        Access::PairWithoutMovable64Cpus,
        Access::PairNear,
        Access::PairNearAlternating,
        Access::PairOnly,
        Access::PairOnlyAlternating,
        Access::Init,
        Access::Announce,
        Access::Hotplug,
    ];

    /// Returns those that are measured unless others are named: the first six, or all.
    pub(super) fn usual(thorough: bool) -> &'static [Access] {
        if thorough { &Access::ALL } else { &Access::ALL[..6] }
    }

    /// Returns whether no memory is movable.
    pub(super) const fn is_without_movable(self) -> bool {
        matches!(self, Access::PairWithoutMovable | Access::PairWithoutMovable64Cpus)
    }

    /// Returns how allocations name nodes, if they do.
    pub(super) const fn nodes(self) -> Option<Asked> {
        let (only, alternate) = match self {
            Access::PairNear => (false, false),
            Access::PairNearAlternating => (false, true),
            Access::PairOnly => (true, false),
            Access::PairOnlyAlternating => (true, true),
            _ => return None,
        };
        Some(Asked { only, alternate })
    }

    /// Returns whether the start is measured, rather than allocations.
    pub(super) const fn is_start(self) -> bool {
        matches!(self, Access::Init | Access::Announce | Access::Hotplug)
    }
}

/// How allocations name nodes.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// Memory of another node is not accepted.
    pub(super) only: bool,
    /// Nodes alternate in the memory.
    pub(super) alternate: bool,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
