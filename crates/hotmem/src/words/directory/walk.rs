//! Lists all pieces of the directory, and the frames that they describe.

use super::Directory;
use super::id::SectionId;
use super::install::frames_of;
use super::pieces::{Chunk, HEADS_CHUNKS, Heads, Leaf, NodePair, PartGroup};
use super::sizes::{CHUNK_SECTIONS, LEAF_CHUNKS, ROOT_LEAVES};
use crate::addr::PfnRange;
use crate::geometry::SECTION_FRAMES;
use crate::outlined::Outlined;
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
    /// Returns the memory of the piece that `pointer` points to, or `None` if `pointer` is null.
    pub(super) fn of_pointer<T>(pointer: &PiecePtr<T>, describes: PfnRange) -> Option<PieceMemory> {
        let memory = pointer.load(Ordering::Acquire).cast_const();
        let piece = PieceMemory { memory: memory.cast(), frames: frames_of::<T>(), describes };
        (!memory.is_null()).then_some(piece)
    }
}

impl Directory {
    /// Iterates over all pieces. Cost: O(chunks).
    pub(crate) fn walk(&self) -> impl Iterator<Item = PieceMemory> {
        let leaves = (0..ROOT_LEAVES).flat_map(|leaf| self.walk_leaf(leaf));
        let nodes = self.records.iter();
        leaves.chain(
            nodes.filter_map(|pointer| {
                PieceMemory::of_pointer::<NodePair>(pointer, PfnRange::EMPTY)
            }),
        )
    }

    fn walk_leaf(&self, number: usize) -> impl Iterator<Item = PieceMemory> {
        let first = number * LEAF_CHUNKS;
        let leaf = self.leaf(number);
        let leaf_piece =
            PieceMemory::of_pointer::<Leaf>(&self.root[number], chunks(first, LEAF_CHUNKS));
        Outlined(leaf_piece.into_iter().chain(leaf.into_iter().flat_map(move |leaf| {
            let all = chunks(first, LEAF_CHUNKS);
            let heads = leaf.heads.iter().enumerate().filter_map(move |(i, pointer)| {
                PieceMemory::of_pointer::<Heads>(
                    pointer,
                    chunks(first + i * HEADS_CHUNKS, HEADS_CHUNKS),
                )
            });
            let node_parts = leaf
                .node_parts
                .iter()
                .filter_map(move |pointer| PieceMemory::of_pointer::<PartGroup>(pointer, all));
            let chunks = leaf.chunks.iter().enumerate().filter_map(move |(i, pointer)| {
                let retired = self.head(first + i).map(|head| &head.retired);
                let chunk_piece =
                    |pointer| PieceMemory::of_pointer::<Chunk>(pointer, chunks(first + i, 1));
                chunk_piece(pointer).or_else(|| chunk_piece(retired?))
            });
            heads.chain(node_parts).chain(chunks)
        })))
    }
}

/// Returns the frames of `count` chunks from number `first` on.
fn chunks(first: usize, count: usize) -> PfnRange {
    let start = SectionId::from_chunk(first, 0).start();
    let frames = (count * CHUNK_SECTIONS * SECTION_FRAMES) as u64;
    PfnRange::with_len(start, frames).unwrap_or(PfnRange::EMPTY)
}
