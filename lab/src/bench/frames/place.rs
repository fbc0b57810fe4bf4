//! The part of the memory from which a case allocates.

use super::value_name::value_name;
use hotmem::Bytes;
use std::fmt;

/// The size of low memory, at the start of the memory.
pub(super) const LOW_SIZE: Bytes = Bytes::gib(4);

/// The part of the memory from which a case allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Place {
    /// All of the memory
    Anywhere,
    /// The first 4 GiB, as for a device that cannot address more
    Low,
    /// Near each of 4 nodes in turn, each of which has a quarter of the memory
    #[value(name = "near-4")]
    Near4,
    /// Near each of 64 nodes in turn
    #[value(name = "near-64")]
    Near64,
    /// On each of 4 nodes in turn, and on no other
    #[value(name = "only-4")]
    Only4,
    /// On each of 64 nodes in turn, and on no other
    #[value(name = "only-64")]
    Only64,
    /// Near each of 4 nodes in turn, where the node changes every 256 MiB
    #[value(name = "near-4-alternating")]
    Near4Alternating,
    /// On each of 4 nodes in turn and on no other, where the node changes every 256 MiB
    #[value(name = "only-4-alternating")]
    Only4Alternating,
}

/// How allocations name nodes.
#[derive(Clone, Copy)]
pub(super) struct Nodes {
    /// The number of nodes.
    pub(super) count: u32,
    /// Whether memory of another node is refused.
    pub(super) refuses_others: bool,
    /// Whether the node changes every 256 MiB. Otherwise each node has one part of the memory.
    pub(super) is_alternating: bool,
}

impl Place {
    /// Returns whether a request names a part of the memory.
    pub(super) const fn is_restricted(self) -> bool {
        !matches!(self, Place::Anywhere)
    }

    /// Returns how allocations name nodes, if they name nodes.
    pub(super) const fn nodes(self) -> Option<Nodes> {
        let (count, refuses_others, is_alternating) = match self {
            Place::Anywhere | Place::Low => return None,
            Place::Near4 => (4, false, false),
            Place::Near64 => (64, false, false),
            Place::Only4 => (4, true, false),
            Place::Only64 => (64, true, false),
            Place::Near4Alternating => (4, false, true),
            Place::Only4Alternating => (4, true, true),
        };
        Some(Nodes { count, refuses_others, is_alternating })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
