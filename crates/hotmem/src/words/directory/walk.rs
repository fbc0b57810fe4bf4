//! Lists all pieces of the directory, and the frames that they describe.

use super::Directory;
use super::id::SectionId;
use super::install::piece_frames;
use super::pieces::{HEADER_GROUP_CHUNKS, Leaf, NodePair, PART_GROUP_NODES};
use super::sizes::{CHUNK_SECTIONS, LEAF_CHUNKS, MAX_NODES, ROOT_LEAVES};
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
    /// Returns the memory of the piece that `pointer` points to, or `None` if `pointer` is null.
    pub(super) fn of_pointer<T>(pointer: &PiecePtr<T>, describes: PfnRange) -> Option<PieceMemory> {
        let memory = pointer.load(Ordering::Acquire).cast_const();
        let piece = PieceMemory { memory: memory.cast(), frames: piece_frames::<T>(), describes };
        (!memory.is_null()).then_some(piece)
    }
}

impl Directory {
    /// Iterates over all pieces. Cost: O(chunks).
    pub(crate) fn walk(&self) -> impl Iterator<Item = PieceMemory> {
        let mut next = 0;
        let pieces = core::iter::from_fn(move || {
            while next < ROOT_LEAVES * PIECES_OF_LEAF {
                let (leaf_number, index) = (next / PIECES_OF_LEAF, next % PIECES_OF_LEAF);
                next += 1;
                let Some(leaf) = self.leaf(leaf_number) else {
                    next = (leaf_number + 1) * PIECES_OF_LEAF;
                    continue;
                };
                if let Some(piece) = self.piece_of_leaf(leaf_number, leaf, index) {
                    return Some(piece);
                }
            }
            None
        });
        let nodes = self.records.iter();
        pieces.chain(
            nodes.filter_map(|pointer| {
                PieceMemory::of_pointer::<NodePair>(pointer, PfnRange::EMPTY)
            }),
        )
    }

    /// Returns piece `index` of a leaf: the leaf itself, chunk headers, parts of nodes, or a chunk.
    fn piece_of_leaf(&self, leaf_number: usize, leaf: &Leaf, index: usize) -> Option<PieceMemory> {
        let first = leaf_number * LEAF_CHUNKS;
        let all = chunks(first, LEAF_CHUNKS);
        let Some(index) = index.checked_sub(1) else {
            return PieceMemory::of_pointer(self.root.get(leaf_number)?, all);
        };
        if let Some(headers) = leaf.headers.get(index) {
            let described = chunks(first + index * HEADER_GROUP_CHUNKS, HEADER_GROUP_CHUNKS);
            return PieceMemory::of_pointer(headers, described);
        }
        let index = index - leaf.headers.len();
        if let Some(parts) = leaf.node_parts.get(index) {
            return PieceMemory::of_pointer(parts, all);
        }
        let index = index - leaf.node_parts.len();
        let described = chunks(first + index, 1);
        PieceMemory::of_pointer(leaf.chunks.get(index)?, described)
    }
}

/// The number of pieces that a leaf can have, with the leaf itself.
const PIECES_OF_LEAF: usize = 1
    + LEAF_CHUNKS.div_ceil(HEADER_GROUP_CHUNKS)
    + MAX_NODES.div_ceil(PART_GROUP_NODES)
    + LEAF_CHUNKS;

/// Returns the frames of `count` chunks from number `first` on.
fn chunks(first: usize, count: usize) -> PfnRange {
    let start = SectionId::from_chunk(first, 0).start();
    let frames = (count * CHUNK_SECTIONS * SECTION_FRAMES) as u64;
    PfnRange::with_len(start, frames).unwrap_or(PfnRange::EMPTY)
}
