//! Lists all pieces of the directory, and the frames that they describe.

use super::Directory;
use super::id::SectionId;
use super::install::frames_of;
use super::pieces::{Chunk, HEADS_CHUNKS, Heads, Leaf, NodePair, PartGroup};
use super::sizes::{CHUNK_SECTIONS, LEAF_CHUNKS, ROOT_LEAVES};
use crate::addr::PfnRange;
use crate::geometry::SECTION_FRAMES;
use crate::sync::{Ordering, PiecePtr};

/// The memory of a piece.
pub(crate) struct PieceMemory {
    /// The address of the piece.
    pub(crate) memory: *const u8,
    /// The number of frames that the piece takes.
    pub(crate) frames: u64,
    /// The frames that the piece describes; empty if it describes nodes or announced ranges.
    pub(crate) describes: PfnRange,
}

impl PieceMemory {
    /// Returns the memory of the piece that `at` points to, or `None` if `at` is null.
    pub(super) fn at<T>(at: &PiecePtr<T>, describes: PfnRange) -> Option<PieceMemory> {
        let memory = at.load(Ordering::Acquire).cast_const();
        let made = PieceMemory { memory: memory.cast(), frames: frames_of::<T>(), describes };
        (!memory.is_null()).then_some(made)
    }
}

impl Directory {
    /// Iterates over all pieces. Cost: O(chunks).
    pub(crate) fn walk(&self) -> impl Iterator<Item = PieceMemory> {
        let leaves = (0..ROOT_LEAVES).flat_map(|leaf| self.walk_leaf(leaf));
        let nodes = self.records.iter();
        leaves.chain(nodes.filter_map(|at| PieceMemory::at::<NodePair>(at, PfnRange::EMPTY)))
    }

    fn walk_leaf(&self, number: usize) -> impl Iterator<Item = PieceMemory> {
        let first = number * LEAF_CHUNKS;
        let leaf = self.leaf(number);
        let own = PieceMemory::at::<Leaf>(&self.root[number], chunks(first, LEAF_CHUNKS));
        own.into_iter().chain(leaf.into_iter().flat_map(move |leaf| {
            let all = chunks(first, LEAF_CHUNKS);
            let heads = leaf.heads.iter().enumerate().filter_map(move |(i, at)| {
                PieceMemory::at::<Heads>(at, chunks(first + i * HEADS_CHUNKS, HEADS_CHUNKS))
            });
            let parts =
                leaf.parts.iter().filter_map(move |at| PieceMemory::at::<PartGroup>(at, all));
            let chunks = leaf.chunks.iter().enumerate().filter_map(move |(i, at)| {
                let retired = self.head(first + i).map(|head| &head.retired);
                let made = |at| PieceMemory::at::<Chunk>(at, chunks(first + i, 1));
                made(at).or_else(|| made(retired?))
            });
            heads.chain(parts).chain(chunks)
        }))
    }
}

/// Returns the frames of `count` chunks from number `first` on.
fn chunks(first: usize, count: usize) -> PfnRange {
    let start = SectionId::from_chunk(first, 0).start();
    let frames = (count * CHUNK_SECTIONS * SECTION_FRAMES) as u64;
    PfnRange::with_len(start, frames).unwrap_or(PfnRange::EMPTY)
}
