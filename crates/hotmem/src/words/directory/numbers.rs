//! Gives an index to each of the platform's node numbers.

use super::id::{NodeIndex, NodeSet};
use super::sizes::{MAX_NODES, NODE_WORDS};
use crate::sync::{Ordering, untracked};

/// The platform's node numbers, each with its index. Only the control path changes them; any
/// context may read them.
pub(crate) struct NodeNumbers {
    /// A hash table with open addressing. The first place that is tried for a number is the number
    /// modulo [`MAX_NODES`]; then the next places are tried in order. A place contains 0 if it was
    /// never used, [`PLACE_FREED`] if it is free again, and otherwise a number with the flag
    /// [`PLACE_TAKEN`].
    places: [untracked::AtomicU64; MAX_NODES],
    /// A bit for each place that is taken.
    used_indices: [untracked::AtomicU64; NODE_WORDS],
}

const PLACE_TAKEN: u64 = 1 << 32;
const PLACE_FREED: u64 = 1 << 33;

impl NodeNumbers {
    pub(crate) const fn new() -> NodeNumbers {
        NodeNumbers {
            places: [const { untracked::AtomicU64::new(0) }; MAX_NODES],
            used_indices: [const { untracked::AtomicU64::new(0) }; NODE_WORDS],
        }
    }

    /// Returns the index of a number, if it has one. Relaxed, as all accesses of this table: they
    /// order no other data.
    #[inline]
    pub(crate) fn index_of(&self, number: u32) -> Option<NodeIndex> {
        // Usually, a number has the index that is tried first.
        let first = NodeIndex::new(number as usize % MAX_NODES)?;
        if self.has_index(number, first) { Some(first) } else { self.search(number) }
    }

    /// Returns whether a number has this index.
    #[inline]
    pub(crate) fn has_index(&self, number: u32, index: NodeIndex) -> bool {
        self.places[index.number()].load(Ordering::Relaxed) == PLACE_TAKEN | u64::from(number)
    }

    #[inline(never)]
    fn search(&self, number: u32) -> Option<NodeIndex> {
        for index in candidate_indices(number) {
            match self.places[index.number()].load(Ordering::Relaxed) {
                0 => return None,
                place if place == PLACE_TAKEN | u64::from(number) => return Some(index),
                _ => {}
            }
        }
        None
    }

    /// Gives an index to a number that has none. Returns `None` if all indices are in use.
    pub(crate) fn insert(&self, number: u32) -> Option<NodeIndex> {
        let is_free = |index: &NodeIndex| self.number_of(*index).is_none();
        let index = candidate_indices(number).find(is_free)?;
        self.places[index.number()].store(PLACE_TAKEN | u64::from(number), Ordering::Relaxed);
        self.used_indices[index.number() / 64]
            .fetch_or(1 << (index.number() % 64), Ordering::Relaxed);
        Some(index)
    }

    /// Takes an index back, so that another number may get it.
    pub(crate) fn forget(&self, index: NodeIndex) {
        self.places[index.number()].store(PLACE_FREED, Ordering::Relaxed);
        self.used_indices[index.number() / 64]
            .fetch_and(!(1 << (index.number() % 64)), Ordering::Relaxed);
    }

    /// Returns the number that has this index.
    #[inline]
    pub(crate) fn number_of(&self, index: NodeIndex) -> Option<u32> {
        let place = self.places[index.number()].load(Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, reason = "the number is in the low 32 bits")]
        (place & PLACE_TAKEN != 0).then_some(place as u32)
    }

    /// Returns all indices that are in use.
    #[inline(never)]
    pub(crate) fn all(&self) -> NodeSet {
        NodeSet::from_words(self.used_indices.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }
}

/// Iterates over the indices that a number may have, in the order in which they are tried.
fn candidate_indices(number: u32) -> impl Iterator<Item = NodeIndex> {
    let first = number as usize % MAX_NODES;
    (0..MAX_NODES).filter_map(move |i| NodeIndex::new((first + i) % MAX_NODES))
}
