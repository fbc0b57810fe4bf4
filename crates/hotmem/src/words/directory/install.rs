//! Makes pieces of the directory, and stores the pointers to them. Only the control path does so,
//! on one CPU at a time, while readers run on other CPUs.
//!
//! Pieces are made from the root down. A pointer is stored with Release after its piece was
//! initialised, so that a reader that finds a piece also finds the pieces above it.

use super::pieces::{
    Chunk, ChunkHeaderGroup, DirectoryPiece, HEADER_GROUP_CHUNKS, Leaf, NODES_WITHOUT_PART_GROUP,
    NodePair, NodePartGroup, PART_GROUP_NODES,
};
use super::sizes::LEAF_CHUNKS;
use super::{Directory, NodeIndex, SectionId};
use crate::sync::{Ordering, PiecePtr};
use core::ptr::NonNull;

/// A source of memory for pieces.
pub(crate) trait PieceSupply {
    /// Returns a new piece whose bytes are all zero and which stays for as long as the instance
    /// exists. Returns `None` if no memory is left.
    fn new_piece<T: DirectoryPiece>(&mut self) -> Option<NonNull<T>>;
}

/// The error for a piece that could not be made because no memory is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoMemory;

impl Directory {
    /// Makes all missing pieces that a section needs to have words and to belong to `node`, from
    /// the root down. If this fails half-way, the pieces that were made stay.
    pub(crate) fn install(
        &self,
        id: SectionId,
        node: NodeIndex,
        supply: &mut impl PieceSupply,
    ) -> Result<(), NoMemory> {
        let leaf = self.install_without_chunk(id, node, supply)?;
        let _: &Chunk = get_or_make(&leaf.chunks[id.chunk() % LEAF_CHUNKS], supply)?;
        Ok(())
    }

    /// Makes the pieces that [`install`](Self::install) makes, except the chunk. Returns the leaf.
    fn install_without_chunk(
        &self,
        id: SectionId,
        node: NodeIndex,
        supply: &mut impl PieceSupply,
    ) -> Result<&Leaf, NoMemory> {
        self.install_node(node, supply)?;
        let (leaf, chunk) = (id.chunk() / LEAF_CHUNKS, id.chunk() % LEAF_CHUNKS);
        let leaf: &Leaf = get_or_make(&self.root[leaf], supply)?;
        let _: &ChunkHeaderGroup = get_or_make(&leaf.headers[chunk / HEADER_GROUP_CHUNKS], supply)?;
        if node.number() >= NODES_WITHOUT_PART_GROUP {
            let _: &NodePartGroup =
                get_or_make(&leaf.node_parts[node.number() / PART_GROUP_NODES], supply)?;
        }
        Ok(leaf)
    }

    /// Makes the record of a node, if it is missing.
    pub(crate) fn install_node(
        &self,
        node: NodeIndex,
        supply: &mut impl PieceSupply,
    ) -> Result<(), NoMemory> {
        let _: &NodePair = get_or_make(&self.records[node.number() / 2], supply)?;
        Ok(())
    }

    /// Tells the pointers that no more pieces will be made: see [`PiecePtr`].
    #[cfg(loom)]
    pub(crate) fn end_installs(&self) {
        self.records.iter().for_each(PiecePtr::end_installs);
        self.root.iter().for_each(PiecePtr::end_installs);
        for leaf in (0..self.root.len()).filter_map(|leaf| self.leaf(leaf)) {
            leaf.chunks.iter().for_each(PiecePtr::end_installs);
            leaf.headers.iter().for_each(PiecePtr::end_installs);
            leaf.node_parts.iter().for_each(PiecePtr::end_installs);
        }
    }

    /// Makes the pieces that [`install`](Self::install) makes, but uses `chunk`, which may have
    /// fewer sections, as the chunk.
    #[cfg(loom)]
    pub(crate) fn install_chunk(
        &self,
        id: SectionId,
        node: NodeIndex,
        chunk: NonNull<Chunk>,
        supply: &mut impl PieceSupply,
    ) -> Result<(), NoMemory> {
        let leaf = self.install_without_chunk(id, node, supply)?;
        leaf.chunks[id.chunk() % LEAF_CHUNKS].store(chunk.as_ptr(), Ordering::Release);
        Ok(())
    }
}

/// Returns how many frames a piece takes.
#[cfg(not(loom))]
pub(super) const fn piece_frames<T>() -> u64 {
    (size_of::<T>() as u64).div_ceil(crate::geometry::FRAME_SIZE)
}

/// Returns the piece that `pointer` points to, and makes it if there is none.
pub(super) fn get_or_make<'a, T: DirectoryPiece>(
    pointer: &'a PiecePtr<T>,
    supply: &mut impl PieceSupply,
) -> Result<&'a T, NoMemory> {
    let piece = match NonNull::new(pointer.load(Ordering::Acquire)) {
        Some(piece) => piece,
        None => {
            let new_piece = supply.new_piece::<T>().ok_or(NoMemory)?;
            // Release: a reader that finds the pointer finds the piece initialised.
            pointer.store(new_piece.as_ptr(), Ordering::Release);
            new_piece
        }
    };
    // SAFETY: a piece of a `PieceSupply` stays for as long as the instance exists, and consists of
    // atomics, so that shared references to it may exist at any time.
    Ok(unsafe { piece.as_ref() })
}
