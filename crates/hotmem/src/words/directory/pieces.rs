//! Defines the pieces of the directory. A piece takes whole frames. If all bytes of a piece are
//! zero, the piece is valid and empty.
//!
//! | piece | size | covers |
//! |---|---|---|
//! | root | 8 KiB, in `Frames` itself | 4 PiB |
//! | [`Leaf`] | 8 KiB | 4 TiB |
//! | [`ChunkHeaderGroup`] | 4 KiB | 128 GiB |
//! | [`Chunk`] | 12 KiB | 8 GiB |
//! | [`NodePartGroup`] | 4 KiB | 6 nodes in 4 TiB; the leaf itself has the bits of the first 5 nodes |
//! | [`NodePair`] | 4 KiB | two nodes in 4 PiB |

use super::id::NodeIndex;
use super::sizes::{CHUNK_SECTIONS, LEAF_CHUNKS, MAX_NODES, NODE_INDEX_BITS, ROOT_LEAVES};
use crate::sync::{AtomicU8, AtomicU64, Ordering, PiecePtr, untracked};
use crate::words::{Class, Grain, NodeCursor, Section, Zone};

pub(super) const CLASSES: usize = Class::COUNT;
/// The number of words that have a bit for each chunk of a leaf.
pub(super) const PART_WORDS: usize = LEAF_CHUNKS.div_ceil(64);
/// The number of words that have a bit for each leaf.
pub(super) const TOP_WORDS: usize = if ROOT_LEAVES == 1 { 0 } else { ROOT_LEAVES.div_ceil(64) };
/// The number of chunks whose headers lie in one frame.
pub(super) const HEADER_GROUP_CHUNKS: usize = if cfg!(loom) { 2 } else { 16 };
/// The number of nodes whose parts of a leaf lie in one frame.
pub(super) const PART_GROUP_NODES: usize = if cfg!(loom) { 2 } else { 6 };
/// The number of nodes whose parts of a leaf lie in the leaf itself.
pub(super) const NODES_WITHOUT_PART_GROUP: usize = if cfg!(loom) { 1 } else { 5 };

/// The number of CPUs that have hints of their own in the record of a node. Other CPUs share them.
const NODE_HINT_CPUS: usize = if cfg!(loom) { 1 } else { 8 };

/// The two possible lengths of a neighbourhood, in sections. A neighbourhood is the memory that one
/// CPU should have for itself. With the second length, the CPU shares no words of the trees with
/// other CPUs either.
pub(crate) const NEIGHBOURHOODS: [u64; 2] = [1, if cfg!(loom) { 1 } else { CHUNK_SECTIONS as u64 }];

/// A type of a piece, which consists of atomics only.
///
/// # Safety
/// All zero bytes are a valid value.
pub(crate) unsafe trait DirectoryPiece: Sized + 'static {
    /// Returns an empty piece. loom's atomics cannot be made from zero bytes.
    #[cfg(loom)]
    fn zeroed() -> Self;
}

/// The pointers to the pieces of 4 TiB: to their chunks, to the chunks' headers, and to the nodes'
/// parts.
#[repr(C)]
pub(crate) struct Leaf {
    /// The pointers to chunks, which fill the first frame of the leaf, because each look-up reads
    /// one of them.
    pub(super) chunks: [PiecePtr<Chunk>; LEAF_CHUNKS],
    pub(super) headers: [PiecePtr<ChunkHeaderGroup>; LEAF_CHUNKS.div_ceil(HEADER_GROUP_CHUNKS)],
    pub(super) node_parts: [PiecePtr<NodePartGroup>; MAX_NODES.div_ceil(PART_GROUP_NODES)],
    pub(super) inline_parts: [NodePart; NODES_WITHOUT_PART_GROUP],
}

/// The words of a chunk's sections.
#[repr(C)]
#[cfg(not(loom))]
pub(crate) struct Chunk {
    sections: [Section; CHUNK_SECTIONS],
}

/// A chunk of which only the first sections have words, to keep a model small.
#[cfg(loom)]
pub(crate) struct Chunk {
    pub(super) sections: std::vec::Vec<Section>,
}

/// The lowest level of the trees over a chunk, and the nodes of its sections. It begins at a pair of
/// cache lines, because some processors fetch lines in pairs, and different CPUs write to
/// neighbouring headers.
#[repr(C, align(128))]
pub(crate) struct ChunkHeader {
    /// For each class, a bit for each section that may have pageblocks of the class, on any node.
    pub(super) tree: [AtomicU64; CLASSES],
    /// For each bit of a node's index, the sections whose node has this bit set.
    pub(super) sections_by_index_bit: [AtomicU64; NODE_INDEX_BITS],
    /// The index of each section's node.
    nodes: [AtomicU8; CHUNK_SECTIONS],
}

/// Headers of neighbouring chunks.
#[repr(C)]
pub(crate) struct ChunkHeaderGroup {
    pub(super) headers: [ChunkHeader; HEADER_GROUP_CHUNKS],
}

/// The bits of one node in a leaf: for each class, a bit for each chunk.
#[repr(C)]
pub(crate) struct NodePart {
    words: [[AtomicU64; PART_WORDS]; CLASSES],
}

/// Parts of neighbouring nodes.
#[repr(C)]
pub(crate) struct NodePartGroup {
    pub(super) node_parts: [NodePart; PART_GROUP_NODES],
}

/// The record of a node: the top words of its trees, the hints of allocations near it, and its
/// statistics.
#[repr(C)]
pub(crate) struct NodeRecord {
    /// For each class, a bit for each leaf.
    top: [[AtomicU64; TOP_WORDS]; CLASSES],
    /// For each CPU and grain, the hint of each zone: see `frames/cpu/node_hints.rs`.
    hints: [[[AtomicU64; 2]; 2]; NODE_HINT_CPUS],
    /// For each CPU, the cursor of each zone: see `words/node_cursor.rs`.
    cursors: [[NodeCursor; 2]; NODE_HINT_CPUS],
    /// The statistics of the node's zones: see `hotplug/zone_counts.rs`.
    pub(crate) zones: [[untracked::AtomicU64; 5]; 3],
}

/// Records of two nodes.
#[repr(C)]
pub(crate) struct NodePair {
    pub(super) nodes: [NodeRecord; 2],
}

impl Chunk {
    pub(super) fn section(&self, index: usize) -> Option<&Section> {
        self.sections.get(index)
    }
}

impl ChunkHeader {
    /// Returns the node of a section.
    ///
    /// Relaxed: code that depends on the node passes a fence or claims a pageblock, and then loads
    /// the node again.
    #[inline]
    pub(super) fn node(&self, index: usize) -> NodeIndex {
        NodeIndex::from_u16(self.nodes[index].load(Ordering::Relaxed).into())
    }

    pub(super) fn set_node(&self, index: usize, node: NodeIndex) {
        self.nodes[index].store(node.to_u8(), Ordering::Relaxed);
    }
}

impl NodePart {
    pub(super) fn words(&self, class: Class) -> &[AtomicU64; PART_WORDS] {
        &self.words[class.index()]
    }
}

impl NodeRecord {
    pub(super) fn top(&self, class: Class) -> &[AtomicU64; TOP_WORDS] {
        &self.top[class.index()]
    }

    /// Returns the hint for allocations of this grain by the CPU with this number.
    pub(crate) fn hint(&self, cpu: usize, zone: Zone, grain: Grain) -> &AtomicU64 {
        &self.hints[cpu % NODE_HINT_CPUS][grain as usize][zone as usize]
    }

    /// Returns the cursor for frames of this zone by the CPU with this number.
    pub(crate) fn cursor(&self, cpu: usize, zone: Zone) -> &NodeCursor {
        &self.cursors[cpu % NODE_HINT_CPUS][zone as usize]
    }

    /// Iterates over the cursors of all CPUs.
    pub(crate) fn cursors(&self) -> impl Iterator<Item = &NodeCursor> {
        self.cursors.iter().flatten()
    }

    /// Iterates over the hints of all CPUs.
    pub(crate) fn hints(&self) -> impl Iterator<Item = &AtomicU64> {
        self.hints.iter().flatten().flatten()
    }
}

/// Implements `DirectoryPiece` for a type of atomics, which are not plain memory under loom.
macro_rules! piece {
    ($name:ty, $zeroed:expr) => {
        // SAFETY: the type consists of atomics of integers and pointers, which may be all zero.
        unsafe impl DirectoryPiece for $name {
            #[cfg(loom)]
            fn zeroed() -> Self {
                $zeroed
            }
        }
    };
}

#[cfg(loom)]
use core::array::from_fn;
#[cfg(loom)]
use core::ptr::null_mut;

#[cfg(loom)]
impl NodePart {
    fn zeroed() -> NodePart {
        NodePart { words: from_fn(|_| from_fn(|_| AtomicU64::new(0))) }
    }
}

piece!(
    Leaf,
    Leaf {
        chunks: from_fn(|_| PiecePtr::new(null_mut())),
        headers: from_fn(|_| PiecePtr::new(null_mut())),
        node_parts: from_fn(|_| PiecePtr::new(null_mut())),
        inline_parts: from_fn(|_| NodePart::zeroed()),
    }
);
piece!(
    ChunkHeaderGroup,
    ChunkHeaderGroup {
        headers: from_fn(|_| ChunkHeader {
            tree: from_fn(|_| AtomicU64::new(0)),
            sections_by_index_bit: from_fn(|_| AtomicU64::new(0)),
            nodes: from_fn(|_| AtomicU8::new(0)),
        }),
    }
);
piece!(Chunk, Chunk::with_sections(CHUNK_SECTIONS));
piece!(NodePartGroup, NodePartGroup { node_parts: from_fn(|_| NodePart::zeroed()) });
piece!(
    NodePair,
    NodePair {
        nodes: from_fn(|_| NodeRecord {
            top: from_fn(|_| from_fn(|_| AtomicU64::new(0))),
            hints: from_fn(|_| from_fn(|_| from_fn(|_| AtomicU64::new(0)))),
            cursors: from_fn(|_| from_fn(|_| NodeCursor::new())),
            zones: [const { [const { untracked::AtomicU64::new(0) }; 5] }; 3],
        }),
    }
);

#[cfg(loom)]
impl Chunk {
    /// Creates a chunk of which the first `sections` have words.
    pub(crate) fn with_sections(sections: usize) -> Chunk {
        Chunk { sections: (0..sections).map(|_| Section::new()).collect() }
    }
}

#[cfg(all(target_pointer_width = "64", not(any(loom, hotmem_geometry = "small"))))]
const _: () = {
    assert!(size_of::<Leaf>() <= 2 << 12 && core::mem::offset_of!(Leaf, headers) == 1 << 12);
    assert!(size_of::<ChunkHeaderGroup>() == 1 << 12);
    assert!(size_of::<Chunk>() == 3 << 12);
    assert!(size_of::<NodePartGroup>() <= 1 << 12);
    assert!(size_of::<NodePair>() <= 1 << 12);
};
