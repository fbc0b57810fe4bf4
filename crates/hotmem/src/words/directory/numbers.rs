//! The platform's numbers of nodes.

use super::id::NodeIndex;
use super::sizes::MAX_NODES;
use crate::sync::{Ordering, settled};

/// More nodes than a machine can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyNodes;

/// The platform's numbers of nodes, each with an index. A number that was given an index keeps it.
pub(crate) struct Numbers {
    /// A hash table: a number lies at its remainder by [`MAX_NODES`] or, where that place is
    /// another's, at the next free one. 0: free; else the number with [`TAKEN`].
    places: [settled::AtomicU64; MAX_NODES],
}

const TAKEN: u64 = 1 << 32;

impl Numbers {
    pub(crate) const fn new() -> Numbers {
        Numbers { places: [const { settled::AtomicU64::new(0) }; MAX_NODES] }
    }

    /// The index of a number that has one.
    #[inline]
    pub(crate) fn index_of(&self, number: u32) -> Option<NodeIndex> {
        for index in probe(number) {
            match self.places[index.number()].load(Ordering::Relaxed) {
                0 => return None,
                place if place == TAKEN | u64::from(number) => return Some(index),
                _ => {}
            }
        }
        None
    }

    /// The index of a number, which is given one if it has none.
    ///
    /// Context: any, lock-free.
    pub(crate) fn insert(&self, number: u32) -> Result<NodeIndex, TooManyNodes> {
        let taken = TAKEN | u64::from(number);
        for index in probe(number) {
            let place = &self.places[index.number()];
            // Relaxed: the number is all that there is.
            match place.compare_exchange(0, taken, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(index),
                Err(place) if place == taken => return Ok(index),
                Err(_) => {}
            }
        }
        Err(TooManyNodes)
    }

    /// The number with this index.
    #[inline]
    pub(crate) fn number_of(&self, index: NodeIndex) -> Option<u32> {
        match self.places[index.number()].load(Ordering::Relaxed) {
            0 => None,
            #[allow(clippy::cast_possible_truncation, reason = "without its mark")]
            place => Some(place as u32),
        }
    }

    /// All indices that numbers have, lowest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeIndex> + use<'_> {
        let indices = (0..MAX_NODES).filter_map(NodeIndex::new);
        indices.filter(|&index| self.number_of(index).is_some())
    }
}

/// The indices that a number may have, in the order in which they are tried.
#[inline]
fn probe(number: u32) -> impl Iterator<Item = NodeIndex> {
    let first = number as usize % MAX_NODES;
    (0..MAX_NODES).filter_map(move |i| NodeIndex::new((first + i) % MAX_NODES))
}
