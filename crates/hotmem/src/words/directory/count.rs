//! Counts the memory that new pieces of the directory will take, before they are made.

use super::install::piece_frames;
use super::pieces::{
    Chunk, ChunkHeaderGroup, HEADER_GROUP_CHUNKS, Leaf, NODES_WITHOUT_PART_GROUP, NodePair,
    NodePartGroup, PART_GROUP_NODES,
};
use super::ranges::RegionTableFrame;
use super::sizes::{LEAF_CHUNKS, MAX_NODES};
use super::{Directory, NodeIndex, SectionId};
use crate::sync::{Ordering, PiecePtr};

/// The memory that pieces will take: the number of runs of contiguous frames, by their length. Each
/// piece takes one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NeededRuns([u64; MAX_PIECE_FRAMES]);

/// The number of frames of the largest piece.
pub(crate) const MAX_PIECE_FRAMES: usize = 3;
/// The number of frames of a piece, for each kind of piece.
pub(crate) const PIECE_FRAMES: [u64; 6] = [
    piece_frames::<Chunk>(),
    piece_frames::<Leaf>(),
    piece_frames::<ChunkHeaderGroup>(),
    piece_frames::<NodePartGroup>(),
    piece_frames::<NodePair>(),
    piece_frames::<RegionTableFrame>(),
];
const _: () = {
    let mut kind = 0;
    while kind < PIECE_FRAMES.len() {
        assert!(PIECE_FRAMES[kind] <= MAX_PIECE_FRAMES as u64);
        kind += 1;
    }
};

impl NeededRuns {
    /// Adds this many runs of one frame.
    pub(crate) fn add_single(&mut self, frames: u64) {
        self.0[0] += frames;
    }

    /// Iterates over the lengths of runs, the longest first, each with the number of runs of that
    /// length.
    pub(crate) fn runs(self) -> impl Iterator<Item = (usize, u64)> {
        self.0.into_iter().enumerate().rev().map(|(index, runs)| (index + 1, runs))
    }

    /// Returns the number of frames in all runs.
    #[inline(never)]
    pub(crate) fn frames(self) -> u64 {
        self.runs().map(|(len, runs)| len as u64 * runs).sum()
    }
}

/// Counts the missing pieces of sections. Sections must be added in ascending order.
pub(crate) struct PieceCount<'a> {
    directory: &'a Directory,
    needed: NeededRuns,
    /// Whether the record of each pair of nodes was counted.
    pairs: [bool; MAX_NODES.div_ceil(2)],
    /// For each group of nodes: whether its [`NodePartGroup`] in the leaf of `last_section` was counted.
    groups: [bool; MAX_NODES.div_ceil(PART_GROUP_NODES)],
    /// The section that was added last.
    last_section: Option<SectionId>,
}

impl<'a> PieceCount<'a> {
    /// Starts to count pieces that are missing in `directory`.
    pub(crate) fn new(directory: &'a Directory) -> PieceCount<'a> {
        PieceCount {
            directory,
            needed: NeededRuns::default(),
            pairs: [false; MAX_NODES.div_ceil(2)],
            groups: [false; MAX_NODES.div_ceil(PART_GROUP_NODES)],
            last_section: None,
        }
    }

    /// Counts the record of a node, if it is missing.
    pub(crate) fn add_node(&mut self, node: NodeIndex) {
        let (pair, directory) = (node.number() / 2, self.directory);
        if !core::mem::replace(&mut self.pairs[pair], true) {
            self.count_missing::<NodePair>(Some(&directory.records[pair]));
        }
    }

    /// Counts the missing pieces that a section of `node` needs.
    pub(crate) fn add(&mut self, id: SectionId, node: NodeIndex) {
        self.add_node(node);
        let node = node.number();
        let last_section = self.last_section.replace(id);
        let is_new = |piece_number: fn(SectionId) -> usize| {
            last_section.is_none_or(|last_section| piece_number(last_section) != piece_number(id))
        };
        let directory = self.directory;
        let root = &directory.root[id.chunk() / LEAF_CHUNKS];
        let leaf = directory.leaf(id.chunk() / LEAF_CHUNKS);
        let chunk_in_leaf = id.chunk() % LEAF_CHUNKS;
        if is_new(|id| id.chunk() / LEAF_CHUNKS) {
            self.count_missing::<Leaf>(Some(root));
            self.groups = [false; MAX_NODES.div_ceil(PART_GROUP_NODES)];
        }
        if is_new(|id| id.chunk() / HEADER_GROUP_CHUNKS) {
            self.count_missing::<ChunkHeaderGroup>(
                leaf.map(|leaf| &leaf.headers[chunk_in_leaf / HEADER_GROUP_CHUNKS]),
            );
        }
        if is_new(SectionId::chunk) {
            self.count_missing::<Chunk>(leaf.map(|leaf| &leaf.chunks[chunk_in_leaf]));
        }
        if node >= NODES_WITHOUT_PART_GROUP
            && !core::mem::replace(&mut self.groups[node / PART_GROUP_NODES], true)
        {
            self.count_missing::<NodePartGroup>(
                leaf.map(|leaf| &leaf.node_parts[node / PART_GROUP_NODES]),
            );
        }
    }

    /// Returns the memory that all counted pieces will take.
    pub(crate) fn needed(&self) -> NeededRuns {
        self.needed
    }

    /// Counts a piece if it is missing. `pointer` is the pointer to the piece, or `None` if the
    /// piece that would have the pointer is missing too.
    fn count_missing<T>(&mut self, pointer: Option<&PiecePtr<T>>) {
        let exists = pointer.is_some_and(|pointer| !pointer.load(Ordering::Acquire).is_null());
        if !exists {
            #[allow(clippy::cast_possible_truncation, reason = "at most MAX_PIECE_FRAMES")]
            let len = piece_frames::<T>() as usize;
            self.needed.0[len - 1] += 1;
        }
    }
}
