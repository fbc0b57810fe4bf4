//! How much memory pieces will take, before they are made.

use super::install::frames_of;
use super::pieces::{Chunk, HEADS_CHUNKS, Heads, INLINE_PARTS, Leaf, NodePair, PARTS, PartGroup};
use super::sizes::{LEAF_CHUNKS, MAX_NODES};
use super::{Directory, NodeIndex, SectionId};
use crate::sync::{Ordering, PiecePtr};

/// Counts the pieces that are missing for sections, which are named in ascending order.
pub(crate) struct PieceCount<'a> {
    directory: &'a Directory,
    frames: u64,
    /// Which pairs of nodes, and which groups of nodes in the last leaf, were counted.
    pairs: [bool; MAX_NODES.div_ceil(2)],
    groups: [bool; MAX_NODES.div_ceil(PARTS)],
    last: Option<SectionId>,
}

impl<'a> PieceCount<'a> {
    /// Counts what `directory` does not have.
    pub(crate) fn beside(directory: &'a Directory) -> PieceCount<'a> {
        PieceCount {
            directory,
            frames: 0,
            pairs: [false; MAX_NODES.div_ceil(2)],
            groups: [false; MAX_NODES.div_ceil(PARTS)],
            last: None,
        }
    }

    /// One more section, of this node.
    pub(crate) fn add(&mut self, id: SectionId, node: NodeIndex) {
        let node = node.number();
        let last = self.last.replace(id);
        let is_new = |of: fn(SectionId) -> usize| last.is_none_or(|last| of(last) != of(id));
        let root = &self.directory.root[id.chunk() / LEAF_CHUNKS];
        let leaf = self.directory.leaf(id.chunk() / LEAF_CHUNKS);
        let at = id.chunk() % LEAF_CHUNKS;
        if is_new(|id| id.chunk() / LEAF_CHUNKS) {
            self.frames += missing::<Leaf>(Some(root));
            self.groups = [false; MAX_NODES.div_ceil(PARTS)];
        }
        if is_new(|id| id.chunk() / HEADS_CHUNKS) {
            self.frames += missing::<Heads>(leaf.map(|leaf| &leaf.heads[at / HEADS_CHUNKS]));
        }
        if is_new(SectionId::chunk) {
            self.frames += missing::<Chunk>(leaf.map(|leaf| &leaf.chunks[at]));
        }
        if !core::mem::replace(&mut self.pairs[node / 2], true) {
            self.frames += missing::<NodePair>(Some(&self.directory.records[node / 2]));
        }
        if node >= INLINE_PARTS && !core::mem::replace(&mut self.groups[node / PARTS], true) {
            self.frames += missing::<PartGroup>(leaf.map(|leaf| &leaf.parts[node / PARTS]));
        }
    }

    /// Frames that all of these take.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }
}

impl Directory {
    /// Frames that what is kept of a node takes, if it is not there.
    pub(crate) fn frames_for_node(&self, node: NodeIndex) -> u64 {
        missing::<NodePair>(Some(&self.records[node.number() / 2]))
    }
}

/// Frames of a piece, if it is not there; `at`: what points to it, if that is there.
fn missing<T>(at: Option<&PiecePtr<T>>) -> u64 {
    let is_there = at.is_some_and(|at| !at.load(Ordering::Acquire).is_null());
    if is_there { 0 } else { frames_of::<T>() }
}
