//! Defines the numbers of sections, and the indices of nodes.

use super::sizes::{CHUNK_SECTIONS, LEAF_CHUNKS, MAX_NODES, NODE_WORDS, ROOT_LEAVES};
use crate::addr::Pfn;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, mask};

/// The absolute number of a section: the number of its first frame, divided by the number of frames
/// of a section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct SectionId(u32);

/// One past the last section that the directory can have.
pub(crate) const SECTIONS: usize = ROOT_LEAVES * LEAF_CHUNKS * CHUNK_SECTIONS;

impl SectionId {
    /// Returns section number `n`, or `None` if `n` is not below [`SECTIONS`].
    #[allow(clippy::cast_possible_truncation, reason = "below SECTIONS")]
    pub(crate) fn new(n: u64) -> Option<SectionId> {
        if n < SECTIONS as u64 { Some(SectionId(n as u32)) } else { None }
    }

    /// Returns the section whose [`number`](Self::number) is `n`. If `n` is the number of no
    /// section, the result is an arbitrary section.
    #[allow(clippy::cast_possible_truncation, reason = "below SECTIONS")]
    pub(crate) fn from_number(n: u64) -> SectionId {
        SectionId((n % SECTIONS as u64) as u32)
    }

    /// Returns the section of a frame, or `None` if the directory has no such section.
    pub(crate) fn of(pfn: Pfn) -> Option<SectionId> {
        SectionId::new(pfn.number() / SECTION_FRAMES as u64)
    }

    /// Returns the first frame of the section.
    pub(crate) fn start(self) -> Pfn {
        self.block_start(0)
    }

    /// Returns the first frame of pageblock `bit` of the section.
    pub(crate) fn block_start(self, bit: usize) -> Pfn {
        let frame = self.number() * SECTION_FRAMES as u64 + (bit * PAGEBLOCK_FRAMES) as u64;
        Pfn::new(frame).unwrap_or(Pfn::LIMIT)
    }

    /// Returns the section with index `index` in a chunk. `chunk` must be below the number of
    /// chunks.
    #[allow(clippy::cast_possible_truncation, reason = "below SECTIONS, which is 2^25")]
    pub(super) fn from_chunk(chunk: usize, index: usize) -> SectionId {
        SectionId((chunk * CHUNK_SECTIONS + index) as u32)
    }

    /// Returns the number of the section.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.0)
    }

    pub(super) fn chunk(self) -> usize {
        self.0 as usize / CHUNK_SECTIONS
    }

    /// Returns the index of the section in its chunk.
    pub(super) fn index_in_chunk(self) -> usize {
        self.0 as usize % CHUNK_SECTIONS
    }
}

/// A node's index in the tables of this instance: below [`MAX_NODES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct NodeIndex(u8);

impl NodeIndex {
    /// The lowest index.
    pub(crate) const FIRST: NodeIndex = NodeIndex(0);

    /// Returns index `n`, or `None` if `n` is not below [`MAX_NODES`].
    pub(crate) const fn new(n: usize) -> Option<NodeIndex> {
        #[allow(clippy::cast_possible_truncation, reason = "below MAX_NODES, at most 256")]
        if n < MAX_NODES { Some(NodeIndex(n as u8)) } else { None }
    }

    #[allow(clippy::cast_possible_truncation, reason = "below MAX_NODES, at most 256")]
    pub(super) const fn from_u16(index: u16) -> NodeIndex {
        NodeIndex((index as usize % MAX_NODES) as u8)
    }

    pub(super) const fn to_u8(self) -> u8 {
        self.0
    }

    /// Returns the index as a number below [`MAX_NODES`].
    pub(crate) const fn number(self) -> usize {
        self.0 as usize % MAX_NODES
    }
}

/// A set of a machine's nodes. As an iterator, it yields them lowest first.
#[derive(Clone, Copy, Default)]
pub(crate) struct NodeSet([u64; NODE_WORDS]);

impl NodeSet {
    pub(super) const fn from_words(words: [u64; NODE_WORDS]) -> NodeSet {
        NodeSet(words)
    }

    pub(crate) fn insert(&mut self, node: NodeIndex) {
        self.0[node.number() / 64] |= 1 << (node.number() % 64);
    }

    /// Returns the nodes that are not among `others`.
    pub(crate) fn without(self, others: NodeSet) -> NodeSet {
        NodeSet(core::array::from_fn(|i| self.0[i] & !others.0[i]))
    }

    /// Returns the nodes whose index is `from` or above.
    pub(crate) fn at_or_above(mut self, from: NodeIndex) -> NodeSet {
        let (index, bit) = (from.number() / 64, from.number() % 64);
        self.0[..index].fill(0);
        self.0[index] &= !mask(bit);
        self
    }
}

impl Iterator for NodeSet {
    type Item = NodeIndex;

    fn next(&mut self) -> Option<NodeIndex> {
        let (i, word) = self.0.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        NodeIndex::new(i * 64 + bit)
    }
}
