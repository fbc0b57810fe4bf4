//! Predicts when the engine allocates memory for words.

use hotmem::{NodeId, PfnRange};
use hotmem_testkit::SECTION;
use std::collections::BTreeSet;

/// Records the memory that has words. Words stay when the memory is withdrawn.
#[derive(Default, Debug)]
pub(crate) struct Words {
    chunks: BTreeSet<u64>,
    /// The pairs of nodes that have a record.
    node_pairs: BTreeSet<usize>,
    /// The only leaf holds the bits of nodes 0 to 4 itself. The bits of all other nodes lie in
    /// memory that is allocated for six nodes together: these are the groups that have it.
    node_groups: BTreeSet<usize>,
    /// The largest number of regions so far.
    most_regions: usize,
}

impl Words {
    /// The number of frames that a chunk describes.
    pub(crate) const CHUNK: u64 = SECTION * if cfg!(hotmem_geometry = "small") { 4 } else { 64 };

    /// Records that a node is used. Returns whether the record of the node exists already.
    pub(crate) fn record_node(&mut self, node: NodeId) -> bool {
        // Two nodes share a record.
        let index = node.0 as usize % hotmem::MAX_NODES;
        !self.node_pairs.insert(index / 2)
    }

    /// Records that memory is added. Returns whether the words of the memory and the record of its
    /// node exist already.
    pub(crate) fn record_addition(&mut self, memory: PfnRange, node: NodeId) -> bool {
        let mut words_exist = true;
        for chunk in memory.chunks(Self::CHUNK) {
            let chunk = chunk.start().number() / Self::CHUNK;
            words_exist &= !self.chunks.insert(chunk);
        }
        let index = node.0 as usize % hotmem::MAX_NODES;
        words_exist &= index < 5 || !self.node_groups.insert(index / 6);
        words_exist & self.record_node(node)
    }

    /// Records that a region is announced in addition to `other_regions` regions. Returns whether
    /// the list of regions has an unused entry, so that the announcement allocates nothing.
    pub(crate) fn record_region(&mut self, other_regions: usize) -> bool {
        // The first eight entries need no memory; the others are allocated frame by frame.
        let frames = |regions: usize| regions.saturating_sub(8).div_ceil(63);
        let before = self.most_regions;
        self.most_regions = before.max(other_regions + 1);
        frames(before) == frames(self.most_regions)
    }
}
