//! Stores the words of all sections, and finds them by the absolute number of a section.
//!
//! Sections are grouped into *chunks* of 64 (8 GiB), and chunks into *leaves* of 512 (4 TiB). A
//! look-up loads two pointers, both with Acquire: from the root to the leaf, and from the leaf to
//! the chunk. A null pointer means that the memory is absent. The control path makes the missing
//! pieces when memory is added. Pieces do not move and stay for as long as the instance exists, so
//! that a look-up needs no grace period and no reference counts. This includes the pieces of
//! withdrawn memory: memory that is added at the same place later gets the same pieces.
//!
//! | file | content |
//! |---|---|
//! | `pieces.rs` | what the directory consists of, and how large it is |
//! | `count.rs` | counts how much memory pieces will take |
//! | `install.rs` | makes pieces and publishes them |
//! | `frame_supply.rs` | makes pieces from frames that the caller has set aside |
//! | `walk.rs` | lists all pieces |
//! | `paths.rs` | finds sections: trees over chunks, for each node |
//! | `level.rs` | sets, clears and finds the bits of one level of a tree |
//! | `nodes.rs` | moves sections to another node |
//! | `numbers.rs` | gives indices to the platform's node numbers |
//! | `id.rs`, `sizes.rs` | numbers of sections and nodes; how many there can be |
//! | `ranges.rs`, `range_entry.rs` | list the announced ranges; hold one of them |

#[cfg(not(loom))]
mod count;
#[cfg(not(loom))]
mod frame_supply;
mod id;
mod install;
mod level;
mod nodes;
mod numbers;
mod paths;
mod pieces;
mod range_entry;
mod ranges;
mod sizes;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod walk;

#[cfg(not(loom))]
pub(crate) use count::{MAX_PIECE_FRAMES, NeededRuns, PIECE_FRAMES, PieceCount};
#[cfg(not(loom))]
pub(crate) use frame_supply::{FrameSource, FrameSupply, fill_with_zeroes};
pub(crate) use id::{NodeIndex, NodeSet, SECTIONS, SectionId};
pub(crate) use install::{NoMemory, PieceSupply};
pub(crate) use numbers::NodeNumbers;
pub(crate) use paths::{PATH_LEN, Paths};
#[cfg(loom)]
pub(crate) use pieces::DirectoryPiece;
pub(crate) use pieces::{Chunk, NEIGHBOURHOODS, NodeRecord};
pub(crate) use range_entry::Entry;
pub(crate) use ranges::{Neighbour, Ranges, RegionIndex};
pub(crate) use sizes::CHUNK_SECTIONS;
pub use sizes::MAX_NODES;

use crate::sync::{AtomicU64, Ordering, PiecePtr, array_of, const_unless_loom, untracked};
use crate::words::Section;
use pieces::{CLASSES, HEADER_GROUP_CHUNKS, NODES_WITHOUT_PART_GROUP};
use pieces::{
    ChunkHeader, ChunkHeaderGroup, Leaf, NodePair, NodePart, NodePartGroup, PART_GROUP_NODES,
};
use sizes::{LEAF_CHUNKS, NODE_WORDS, ROOT_LEAVES};

/// The words of all memory of an instance.
pub(crate) struct Directory {
    root: [PiecePtr<Leaf>; ROOT_LEAVES],
    /// The records of the nodes, two in each piece.
    records: [PiecePtr<NodePair>; MAX_NODES.div_ceil(2)],
    /// For each class, a bit for each node that may have sections of that class.
    node_bits: [[AtomicU64; NODE_WORDS]; CLASSES],
    /// The number of low bits into which the node index of every section fits.
    max_index_bits: untracked::AtomicU64,
}

impl Directory {
    const_unless_loom! {
        /// Creates a directory without any pieces.
        pub(crate) fn new() -> Directory {
            Directory {
                root: array_of![PiecePtr::new(core::ptr::null_mut()); ROOT_LEAVES],
                records: array_of![PiecePtr::new(core::ptr::null_mut()); MAX_NODES.div_ceil(2)],
                node_bits: array_of![array_of![AtomicU64::new(0); NODE_WORDS]; CLASSES],
                max_index_bits: untracked::AtomicU64::new(0),
            }
        }
    }

    /// Returns the words of a section, if it has any.
    #[inline]
    pub(crate) fn section(&self, id: SectionId) -> Option<&Section> {
        self.chunk(id.chunk())?.section(id.index_in_chunk())
    }

    /// Returns the node of a section that has words.
    #[inline]
    pub(crate) fn node(&self, id: SectionId) -> Option<NodeIndex> {
        // Relaxed, as for the node itself. `max_index_bits` is raised before a section belongs to
        // another node than the first.
        if self.max_index_bits.load(Ordering::Relaxed) == 0 {
            return Some(NodeIndex::FIRST);
        }
        self.node_in_header(id)
    }

    #[inline]
    fn node_in_header(&self, id: SectionId) -> Option<NodeIndex> {
        Some(self.chunk_header(id.chunk())?.node(id.index_in_chunk()))
    }

    /// Returns the first section with words whose number is in `from..end`.
    ///
    /// Cost: a load for each leaf or chunk that is skipped.
    pub(crate) fn next_section(&self, mut from: u64, end: u64) -> Option<(&Section, SectionId)> {
        while from < end {
            let id = SectionId::new(from)?;
            if let Some(section) = self.section(id) {
                return Some((section, id));
            }
            let missing = self.missing_sections(id);
            from = (from / missing + 1) * missing;
        }
        None
    }

    /// Returns the last section with words whose number is in `from..end`. Cost: as for
    /// [`next_section`](Self::next_section).
    pub(crate) fn prev_section(&self, from: u64, end: u64) -> Option<(&Section, SectionId)> {
        let mut end = end.min(SECTIONS as u64);
        while from < end {
            let id = SectionId::new(end - 1)?;
            if let Some(section) = self.section(id) {
                return Some((section, id));
            }
            let missing = self.missing_sections(id);
            end = id.number() / missing * missing;
        }
        None
    }

    /// Returns how many sections would have the piece that a section without words lacks.
    fn missing_sections(&self, id: SectionId) -> u64 {
        let has_leaf = self.leaf(id.chunk() / LEAF_CHUNKS).is_some();
        (if has_leaf { CHUNK_SECTIONS } else { LEAF_CHUNKS * CHUNK_SECTIONS }) as u64
    }

    #[inline]
    fn leaf(&self, leaf: usize) -> Option<&Leaf> {
        // Acquire pairs with the Release of `get_or_make`.
        let leaf = self.root.get(leaf)?.load(Ordering::Acquire);
        // SAFETY: null, or a pointer to a piece that was initialised before `get_or_make` stored
        // the pointer, and that stays for as long as the instance exists.
        unsafe { leaf.as_ref() }
    }

    #[inline]
    fn chunk(&self, chunk: usize) -> Option<&Chunk> {
        let leaf = self.leaf(chunk / LEAF_CHUNKS)?;
        let chunk = leaf.chunks[chunk % LEAF_CHUNKS].load(Ordering::Acquire);
        // SAFETY: as in `leaf`.
        unsafe { chunk.as_ref() }
    }

    #[inline]
    fn chunk_header(&self, chunk: usize) -> Option<&ChunkHeader> {
        let leaf = self.leaf(chunk / LEAF_CHUNKS)?;
        let headers: *mut ChunkHeaderGroup =
            leaf.headers[chunk % LEAF_CHUNKS / HEADER_GROUP_CHUNKS].load(Ordering::Acquire);
        // SAFETY: as in `leaf`.
        Some(&unsafe { headers.as_ref() }?.headers[chunk % HEADER_GROUP_CHUNKS])
    }

    /// Returns the bits of `node` that stand for the chunks of a leaf.
    #[inline(never)]
    fn part(&self, node: NodeIndex, leaf: usize) -> Option<&NodePart> {
        let leaf = self.leaf(leaf)?;
        let n = node.number();
        if let Some(part) = leaf.inline_parts.get(n) {
            return Some(part);
        }
        let group: *mut NodePartGroup =
            leaf.node_parts[n / PART_GROUP_NODES].load(Ordering::Acquire);
        // SAFETY: as in `leaf`.
        Some(&unsafe { group.as_ref() }?.node_parts[n % PART_GROUP_NODES])
    }

    /// Returns the record of a node.
    #[inline]
    pub(crate) fn record(&self, node: NodeIndex) -> Option<&NodeRecord> {
        let pair = self.records[node.number() / 2].load(Ordering::Acquire);
        // SAFETY: as in `leaf`.
        Some(&unsafe { pair.as_ref() }?.nodes[node.number() % 2])
    }
}

const _: () = assert!(NODES_WITHOUT_PART_GROUP <= MAX_NODES && CHUNK_SECTIONS <= 64);
