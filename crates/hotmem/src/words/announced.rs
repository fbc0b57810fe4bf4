//! Lists the announced ranges, and makes the words of their sections.

#[cfg(not(loom))]
use super::NodeRecord;
use super::directory::Chunk;
#[cfg(not(loom))]
use super::directory::frames_of;
use super::directory::{CHUNK_SECTIONS, Entry, Missing, RegionIndex, SectionId, Supply};
#[cfg(not(loom))]
use super::directory::{Needed, PieceCount};
use super::{NodeId, NodeIndex, Words};
#[cfg(not(loom))]
use crate::addr::Bytes;
use crate::addr::{Pfn, PfnRange};
#[cfg(not(loom))]
use crate::geometry::FRAME_SIZE;
use crate::geometry::SECTION_FRAMES;
#[cfg(not(loom))]
use crate::known::Known;
#[cfg(not(loom))]
use crate::platform::DirectMap;

/// An announced range.
#[derive(Clone, Copy)]
pub(crate) struct Announced<'a> {
    pub(crate) index: RegionIndex,
    pub(crate) range: PfnRange,
    /// The node of an addition that gives no node.
    pub(crate) node: NodeId,
    /// Whether it is boot memory, which is never removed.
    pub(crate) is_boot: bool,
    /// What the control path keeps for the range.
    pub(crate) entry: &'a Entry,
}

impl<'a> Announced<'a> {
    fn new((index, entry, range): (RegionIndex, &'a Entry, PfnRange)) -> Announced<'a> {
        let node = NodeId(entry.node());
        Announced { index, range, node, is_boot: entry.is_boot(), entry }
    }
}

impl Words {
    /// Iterates over the announced ranges. A snapshot.
    pub(crate) fn announced(&self) -> impl Iterator<Item = Announced<'_>> {
        self.ranges.iter().map(Announced::new)
    }

    /// Returns the range that is announced under `index`.
    pub(crate) fn region_at_index(&self, index: RegionIndex) -> Option<Announced<'_>> {
        let entry = self.ranges.get(index)?;
        Some(Announced::new((index, entry, entry.range()?)))
    }

    /// Returns the announced range that has a frame. Cost: O(announced ranges), or O(1) near the
    /// last one found.
    pub(crate) fn announced_at(&self, pfn: Pfn) -> Option<Announced<'_>> {
        self.ranges.at(pfn).map(Announced::new)
    }

    /// Iterates over the ranges of boot memory, which is never removed.
    pub(super) fn boot_ranges(&self) -> impl Iterator<Item = PfnRange> {
        self.announced().filter(|announced| announced.is_boot).map(|announced| announced.range)
    }

    /// Returns whether one announced range has all of `range`.
    pub(crate) fn covers(&self, range: PfnRange) -> bool {
        self.ranges.at(range.start()).is_some_and(|(_, _, all)| all.covers(range))
    }

    /// Returns an announced range that has a part of `range`.
    pub(crate) fn overlapping(&self, range: PfnRange) -> Option<PfnRange> {
        self.ranges.overlapping(range)
    }

    /// Returns how much memory the missing words of these ranges take. The ranges come in ascending
    /// order.
    #[cfg(not(loom))]
    pub(crate) fn missing_for(
        &self,
        ranges: impl Iterator<Item = (PfnRange, NodeIndex)>,
    ) -> Needed {
        let mut count = PieceCount::beside(&self.directory);
        for (range, node) in ranges {
            chunks_of(range).for_each(|id| count.add(id, node));
        }
        count.needed()
    }

    /// Returns how much memory the record of a node takes, if the record is missing.
    #[cfg(not(loom))]
    pub(crate) fn missing_for_node(&self, node: NodeIndex) -> Needed {
        let mut count = PieceCount::beside(&self.directory);
        count.add_node(node);
        count.needed()
    }

    /// Returns the record of a node, and makes it if it is missing.
    #[cfg(not(loom))]
    pub(crate) fn install_node(
        &self,
        node: NodeIndex,
        supply: &mut impl Supply,
    ) -> Result<&NodeRecord, Missing> {
        self.directory.install_node(node, supply)
    }

    /// Returns how much memory the list takes for this many more ranges.
    #[cfg(not(loom))]
    pub(crate) fn memory_needed_for_list(&self, ranges: usize) -> Needed {
        let mut needed = Needed::default();
        needed.add_single(self.ranges.frames_for(ranges));
        needed
    }

    /// Makes the missing words of the sections of `range`, and the missing pieces that these
    /// sections need to belong to `node`. If it fails half-way, the pieces that it has made stay.
    ///
    /// Cost: O(sections).
    #[cfg(not(loom))]
    pub(crate) fn make(
        &self,
        range: PfnRange,
        node: NodeIndex,
        supply: &mut impl Supply,
    ) -> Result<(), Missing> {
        chunks_of(range).try_for_each(|id| self.directory.install(id, node, supply))
    }

    /// Moves the sections of `range` to `node`. The sections have words, and the pieces that they
    /// need to belong to the node exist. A section whose node changes has no memory yet.
    pub(crate) fn set_node(&self, range: PfnRange, node: NodeIndex) {
        for section in range.sections().filter_map(|piece| SectionId::of(piece.start())) {
            self.directory.set_node(section, node);
        }
    }

    /// Adds `range` to the list of announced ranges. `node` is the node of an addition that gives
    /// no node.
    pub(crate) fn announce(
        &self,
        range: PfnRange,
        node: NodeId,
        is_boot: bool,
        supply: &mut impl Supply,
    ) -> Result<RegionIndex, Missing> {
        self.ranges.insert(range, node.0, is_boot, supply)
    }

    /// Announces boot memory of a model. `make` makes its chunks, which have words for the sections
    /// of `range` only.
    #[cfg(loom)]
    pub(crate) fn announce_model<S: Supply>(
        &self,
        range: PfnRange,
        is_boot: bool,
        supply: &mut S,
        make: impl Fn(&mut S, Chunk) -> core::ptr::NonNull<Chunk>,
    ) {
        let mut nodes = self.naming();
        let node = nodes.name(NodeId::ZERO).expect("the first");
        nodes.keep();
        for part in range.chunks((CHUNK_SECTIONS * SECTION_FRAMES) as u64) {
            let chunk = make(supply, Chunk::with_sections(part.sections().count()));
            let first = SectionId::of(part.start()).expect("memory of the model");
            self.directory.install_chunk(first, node, chunk, supply).expect("boxes");
            // A model may move its memory to another node.
            let second = NodeIndex::new(1).expect("two nodes");
            self.directory.install(first, second, supply).expect("boxes");
        }
        self.announce(range, NodeId::ZERO, is_boot, supply).expect("boxes");
        self.set_node(range, node);
        self.directory.settle();
    }

    /// Retires the chunks of `range` in which no memory is left. No part of `range` is present or
    /// announced any more.
    ///
    /// Cost: O(chunks).
    pub(crate) fn retire(&self, range: PfnRange) {
        chunks_of(range).for_each(|id| self.directory.retire(id));
    }

    /// Forgets all chunks that are retired, and the bitmaps of their sections, and returns the
    /// frames that held them.
    #[cfg(not(loom))]
    pub(crate) fn forget_retired(&self, direct_map: DirectMap) -> impl Iterator<Item = PfnRange> {
        let frames =
            move |at: *mut u8, len| PfnRange::with_len(direct_map.frame_at(at).known()?, len);
        self.directory.forget_retired().flat_map(move |(chunk, bitmaps)| {
            let bitmaps = bitmaps.map(|frame| (frame.cast(), 1));
            let chunk = core::iter::once((chunk.cast(), frames_of::<Chunk>()));
            bitmaps.chain(chunk).filter_map(move |(at, len)| frames(at, len))
        })
    }

    /// Moves a model's memory, which is absent, to another node.
    #[cfg(loom)]
    pub(crate) fn move_model(&self, range: PfnRange, node: NodeId) {
        let mut nodes = self.naming();
        let node = nodes.name(node).expect("two nodes");
        nodes.keep();
        self.set_node(range, node);
    }

    /// Returns the memory that all words take.
    #[cfg(not(loom))]
    pub(crate) fn reserved(&self) -> Bytes {
        let directory = self.directory.walk().map(|piece| piece.frames).sum::<u64>();
        let ranges = self.ranges.walk().map(|piece| piece.frames).sum::<u64>();
        Bytes((directory + ranges) * FRAME_SIZE)
    }

    /// Iterates over the frames that hold words, each with the frames that the words describe.
    #[cfg(not(loom))]
    pub(crate) fn memory(
        &self,
        direct_map: DirectMap,
    ) -> impl Iterator<Item = (PfnRange, PfnRange)> {
        let pieces = self.directory.walk().chain(self.ranges.walk());
        pieces.filter_map(move |piece| {
            let start = direct_map.frame_at(piece.memory.cast_mut())?;
            Some((PfnRange::with_len(start, piece.frames)?, piece.describes))
        })
    }
}

/// Returns a section of each chunk that has a part of `range`, the lowest first.
fn chunks_of(range: PfnRange) -> impl Iterator<Item = SectionId> {
    let chunk = (CHUNK_SECTIONS * SECTION_FRAMES) as u64;
    range.chunks(chunk).filter_map(|part| SectionId::of(part.start()))
}
