//! Defines the access patterns that the bench measures.

use super::value_name::value_name;
use std::fmt;

/// An access pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum AccessPattern {
    /// Allocate one run and free it
    Pair,
    /// Allocate many runs, then free them in the same order. All threads allocate at the same
    /// time, and then all threads free
    Bulk,
    /// With all memory in use: free a random one of the held allocations, then allocate one
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
    /// Pair, with the threads in adjacent pageblocks
    PairNeighbours,
    /// Bulk, with the pageblocks divided among the threads in turn
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
    /// No allocation: announce all of the memory on a small machine
    Announce,
    /// No allocation: announce, add and online all of the memory on a small machine
    AnnounceAddOnline,
}

impl AccessPattern {
    /// All access patterns. The default set is first.
    const ALL: [AccessPattern; 17] = [
        AccessPattern::Pair,
        AccessPattern::Bulk,
        AccessPattern::Random,
        AccessPattern::RemoteFree,
        AccessPattern::Interrupts,
        AccessPattern::Mixed,
        AccessPattern::PairNeighbours,
        AccessPattern::BulkNeighbours,
        AccessPattern::PairWithoutMovable,
        AccessPattern::PairWithoutMovable64Cpus,
        AccessPattern::PairNear,
        AccessPattern::PairNearAlternating,
        AccessPattern::PairOnly,
        AccessPattern::PairOnlyAlternating,
        AccessPattern::Init,
        AccessPattern::Announce,
        AccessPattern::AnnounceAddOnline,
    ];

    /// Returns the access patterns that are measured by default: the first six, or all if
    /// `thorough` is set.
    pub(super) fn default_set(thorough: bool) -> &'static [AccessPattern] {
        if thorough { &AccessPattern::ALL } else { &AccessPattern::ALL[..6] }
    }

    /// Returns whether the machine has no movable memory.
    pub(super) const fn is_without_movable(self) -> bool {
        matches!(self, AccessPattern::PairWithoutMovable | AccessPattern::PairWithoutMovable64Cpus)
    }

    /// Returns how allocations name nodes, if they name nodes.
    pub(super) const fn nodes(self) -> Option<NamedNodes> {
        let (refuses_other_nodes, is_alternating) = match self {
            AccessPattern::PairNear => (false, false),
            AccessPattern::PairNearAlternating => (false, true),
            AccessPattern::PairOnly => (true, false),
            AccessPattern::PairOnlyAlternating => (true, true),
            _ => return None,
        };
        Some(NamedNodes { refuses_other_nodes, is_alternating })
    }

    /// Returns whether the pattern measures the start of a machine instead of allocations.
    pub(super) const fn is_start(self) -> bool {
        matches!(
            self,
            AccessPattern::Init | AccessPattern::Announce | AccessPattern::AnnounceAddOnline
        )
    }
}

/// How allocations name nodes.
#[derive(Clone, Copy)]
pub(super) struct NamedNodes {
    /// Whether memory of another node is refused.
    pub(super) refuses_other_nodes: bool,
    /// Whether the node changes every 256 MiB. Otherwise each node has a quarter of the memory.
    pub(super) is_alternating: bool,
}

impl fmt::Display for AccessPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
