//! What is done with the memory.

use super::names::value_name;
use std::fmt;

/// What is done, again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Access {
    /// Allocate one and free it
    Pair,
    /// Allocate many, then free them in the same order; all threads do the one, then the other
    Bulk,
    /// With all memory in use: free any one of those held, allocate one
    Random,
    /// Pair, with each thread in a pageblock beside the next thread's
    PairNeighbours,
    /// Bulk, with each thread in every this many-th pageblock
    BulkNeighbours,
    /// Pair, of movable frames where no memory is movable
    PairWithoutMovable,
    /// The same, after 64 CPUs have allocated
    #[value(name = "pair-without-movable-64-cpus")]
    PairWithoutMovable64Cpus,
    /// Pair, near each of 4 nodes in turn, which have a quarter of the memory each
    PairNear,
    /// The same where memory is another node's every 256 MiB
    PairNearAlternating,
    /// Pair, on each of 4 nodes in turn and on no other, which have a quarter of the memory each
    PairOnly,
    /// The same where memory is another node's every 256 MiB
    PairOnlyAlternating,
    /// Nothing yet: make a machine with all of the memory
    Init,
    /// Nothing yet: announce all of the memory on a small machine, so that its words are ready
    Announce,
    /// Nothing yet: announce, add and online all of the memory on a small machine
    #[value(name = "announce-add-online")]
    Hotplug,
}

impl Access {
    pub(super) const ALL: [Access; 14] = [
        Access::Pair,
        Access::Bulk,
        Access::Random,
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

    /// Returns whether no memory is movable.
    pub(super) const fn is_without_movable(self) -> bool {
        matches!(self, Access::PairWithoutMovable | Access::PairWithoutMovable64Cpus)
    }

    /// Returns the nodes that are asked for, if they are.
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

    /// Returns whether making the memory ready is what is measured.
    pub(super) const fn is_start(self) -> bool {
        matches!(self, Access::Init | Access::Announce | Access::Hotplug)
    }
}

/// How nodes are asked for.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// No other will do.
    pub(super) only: bool,
    /// Nodes alternate in the memory.
    pub(super) alternate: bool,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
