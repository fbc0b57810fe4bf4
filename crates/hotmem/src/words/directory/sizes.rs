//! Defines how many sections, chunks, leaves and nodes there can be.

/// The number of sections in a chunk. A word of the lowest level of a tree has a bit for each.
pub(crate) const CHUNK_SECTIONS: usize =
    if cfg!(any(loom, hotmem_geometry = "small")) { 4 } else { 64 };
/// The number of chunks in a leaf.
pub(super) const LEAF_CHUNKS: usize = if cfg!(loom) { 2 } else { 512 };
/// The number of leaves in the root, so that the directory covers 52 address bits (39 in the small
/// geometry).
pub(super) const ROOT_LEAVES: usize = if cfg!(loom) { 1 } else { 1024 };
/// The most nodes that a machine can have, whatever their numbers.
pub const MAX_NODES: usize = if cfg!(loom) { 2 } else { 256 };
/// The number of words that have a bit for each node.
pub(super) const NODE_WORDS: usize = MAX_NODES.div_ceil(64);
#[cfg(not(loom))]
const _: () = {
    let sections = (ROOT_LEAVES * LEAF_CHUNKS * CHUNK_SECTIONS) as u64;
    assert!(sections * crate::geometry::SECTION_FRAMES as u64 == crate::geometry::PFN_LIMIT);
};
/// The number of bits of a node's index.
pub(super) const NODE_INDEX_BITS: usize = MAX_NODES.ilog2() as usize;
