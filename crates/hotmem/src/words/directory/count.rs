//! How much memory pieces will take, before any is there.

use super::pieces::{Chunk, HEADS_CHUNKS, Heads, INLINE_PARTS, Leaf, NodePair};
use super::pieces::{PARTS, PartGroup};
use super::sizes::LEAF_CHUNKS;

use super::ranges::frames_for;
use super::{MAX_NODES, Numbers, SectionId, TooManyNodes, frames_of};

/// Counts the pieces for sections, which are named in ascending order.
pub(crate) struct PieceCount {
    frames: u64,
    regions: usize,
    numbers: Numbers,
    /// Which pairs of nodes, and which groups of nodes in the last leaf, were counted.
    pairs: [bool; MAX_NODES.div_ceil(2)],
    groups: [bool; MAX_NODES.div_ceil(PARTS)],
    last: Option<SectionId>,
}

impl PieceCount {
    pub(crate) const fn new() -> PieceCount {
        PieceCount {
            frames: 0,
            regions: 0,
            numbers: Numbers::new(),
            pairs: [false; MAX_NODES.div_ceil(2)],
            groups: [false; MAX_NODES.div_ceil(PARTS)],
            last: None,
        }
    }

    /// One more announced range.
    pub(crate) fn add_region(&mut self) {
        self.regions += 1;
    }

    /// One more section, of the node with this number.
    pub(crate) fn add(&mut self, id: SectionId, node: u32) -> Result<(), TooManyNodes> {
        let node = self.numbers.insert(node)?.number();
        let is_new = |of: fn(SectionId) -> usize| self.last.is_none_or(|last| of(last) != of(id));
        if is_new(|id| id.chunk() / LEAF_CHUNKS) {
            self.frames += frames_of::<Leaf>();
            self.groups = [false; MAX_NODES.div_ceil(PARTS)];
        }
        if is_new(|id| id.chunk() / HEADS_CHUNKS) {
            self.frames += frames_of::<Heads>();
        }
        if is_new(SectionId::chunk) {
            self.frames += frames_of::<Chunk>();
        }
        if !core::mem::replace(&mut self.pairs[node / 2], true) {
            self.frames += frames_of::<NodePair>();
        }
        if node >= INLINE_PARTS && !core::mem::replace(&mut self.groups[node / PARTS], true) {
            self.frames += frames_of::<PartGroup>();
        }
        self.last = Some(id);
        Ok(())
    }

    /// Frames that all of these take.
    pub(crate) fn frames(&self) -> u64 {
        self.frames + frames_for(self.regions)
    }
}
