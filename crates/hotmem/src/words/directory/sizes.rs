//! Defines how many sections, chunks, leaves and nodes there can be.

/// Sections in a chunk: each has one bit in a word of a tree.
pub(crate) const CHUNK_SECTIONS: usize =
    if cfg!(any(loom, hotmem_geometry = "small")) { 4 } else { 64 };
/// Chunks in a leaf.
pub(super) const LEAF_CHUNKS: usize = if cfg!(loom) { 2 } else { 512 };
/// Leaves in the root: 52 address bits (39 in the small geometry).
pub(super) const ROOT_LEAVES: usize = if cfg!(loom) { 1 } else { 1024 };
/// The most nodes that a machine can have, whatever their numbers.
pub const MAX_NODES: usize = if cfg!(loom) { 2 } else { 256 };
/// Words of a bitmap of nodes.
pub(super) const NODE_WORDS: usize = MAX_NODES.div_ceil(64);
#[cfg(not(loom))]
const _: () = {
    let sections = (ROOT_LEAVES * LEAF_CHUNKS * CHUNK_SECTIONS) as u64;
    assert!(sections * crate::geometry::SECTION_FRAMES as u64 == crate::geometry::PFN_LIMIT);
};
/// Bits of a node's index.
pub(super) const PLANES: usize = MAX_NODES.ilog2() as usize;
