//! Counts how much memory pieces will take, before they are made.

use super::install::frames_of;
use super::pieces::{Chunk, HEADS_CHUNKS, Heads, INLINE_PARTS, Leaf, NodePair, PARTS, PartGroup};
use super::ranges::Entries;
use super::sizes::{LEAF_CHUNKS, MAX_NODES};
use super::{Directory, NodeIndex, SectionId};
use crate::sync::{Ordering, PiecePtr};

/// How many runs of frames pieces take, by the length of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needed([u64; MOST_FRAMES]);

/// Frames of the largest piece.
pub(crate) const MOST_FRAMES: usize = 3;
/// Frames of a piece, for each kind of piece.
pub(crate) const ONE_OF_EACH: [u64; 6] = [
    frames_of::<Chunk>(),
    frames_of::<Leaf>(),
    frames_of::<Heads>(),
    frames_of::<PartGroup>(),
    frames_of::<NodePair>(),
    frames_of::<Entries>(),
];
const _: () = {
    let mut kind = 0;
    while kind < ONE_OF_EACH.len() {
        assert!(ONE_OF_EACH[kind] <= MOST_FRAMES as u64);
        kind += 1;
    }
};

impl Needed {
    /// Adds this many single frames.
    pub(crate) fn add_single(&mut self, frames: u64) {
        self.0[0] += frames;
    }

    /// Returns how many runs there are of each length, the longest first.
    pub(crate) fn runs(self) -> impl Iterator<Item = (usize, u64)> {
        (0..MOST_FRAMES).rev().map(move |at| (at + 1, self.0[at]))
    }

    /// Returns the number of frames in all runs.
    pub(crate) fn frames(self) -> u64 {
        self.runs().map(|(len, runs)| len as u64 * runs).sum()
    }
}

/// Counts the pieces that sections lack. The sections are named in ascending order.
pub(crate) struct PieceCount<'a> {
    directory: &'a Directory,
    needed: Needed,
    /// Which pairs of nodes, and which groups of nodes in the last leaf, were counted.
    pairs: [bool; MAX_NODES.div_ceil(2)],
    groups: [bool; MAX_NODES.div_ceil(PARTS)],
    last: Option<SectionId>,
}

impl<'a> PieceCount<'a> {
    /// Starts a count of pieces that `directory` does not have.
    pub(crate) fn beside(directory: &'a Directory) -> PieceCount<'a> {
        PieceCount {
            directory,
            needed: Needed::default(),
            pairs: [false; MAX_NODES.div_ceil(2)],
            groups: [false; MAX_NODES.div_ceil(PARTS)],
            last: None,
        }
    }

    /// Counts the record of a node.
    pub(crate) fn add_node(&mut self, node: NodeIndex) {
        let (pair, directory) = (node.number() / 2, self.directory);
        if !core::mem::replace(&mut self.pairs[pair], true) {
            self.need::<NodePair>(Some(&directory.records[pair]));
        }
    }

    /// Counts what one more section, of this node, needs.
    pub(crate) fn add(&mut self, id: SectionId, node: NodeIndex) {
        self.add_node(node);
        let node = node.number();
        let last = self.last.replace(id);
        let is_new = |of: fn(SectionId) -> usize| last.is_none_or(|last| of(last) != of(id));
        let directory = self.directory;
        let root = &directory.root[id.chunk() / LEAF_CHUNKS];
        let leaf = directory.leaf(id.chunk() / LEAF_CHUNKS);
        let at = id.chunk() % LEAF_CHUNKS;
        if is_new(|id| id.chunk() / LEAF_CHUNKS) {
            self.need::<Leaf>(Some(root));
            self.groups = [false; MAX_NODES.div_ceil(PARTS)];
        }
        if is_new(|id| id.chunk() / HEADS_CHUNKS) {
            self.need::<Heads>(leaf.map(|leaf| &leaf.heads[at / HEADS_CHUNKS]));
        }
        if is_new(SectionId::chunk) && !directory.is_retired(id) {
            self.need::<Chunk>(leaf.map(|leaf| &leaf.chunks[at]));
        }
        if node >= INLINE_PARTS && !core::mem::replace(&mut self.groups[node / PARTS], true) {
            self.need::<PartGroup>(leaf.map(|leaf| &leaf.parts[node / PARTS]));
        }
    }

    /// Returns what all counted pieces take.
    pub(crate) fn needed(&self) -> Needed {
        self.needed
    }

    /// Counts a piece if it is missing. `at` is the pointer to the piece, if that pointer exists.
    fn need<T>(&mut self, at: Option<&PiecePtr<T>>) {
        let is_there = at.is_some_and(|at| !at.load(Ordering::Acquire).is_null());
        if !is_there {
            #[allow(clippy::cast_possible_truncation, reason = "at most MOST_FRAMES")]
            let len = frames_of::<T>() as usize;
            self.needed.0[len - 1] += 1;
        }
    }
}
