//! Announced ranges: which there are, and the words of their sections.

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
    /// The node of additions that name none.
    pub(crate) node: NodeId,
    /// Boot memory, which is never removed.
    pub(crate) fixed: bool,
    /// What the control path keeps of it.
    pub(crate) entry: &'a Entry,
}

impl<'a> Announced<'a> {
    fn new((index, entry, range): (RegionIndex, &'a Entry, PfnRange)) -> Announced<'a> {
        let node = NodeId::new(entry.node());
        Announced { index, range, node, fixed: entry.is_fixed(), entry }
    }
}

impl Words {
    /// The announced ranges. A snapshot.
    pub(crate) fn announced(&self) -> impl Iterator<Item = Announced<'_>> {
        self.ranges.iter().map(Announced::new)
    }

    /// The range that is announced under `index`.
    pub(crate) fn announced_as(&self, index: RegionIndex) -> Option<Announced<'_>> {
        let entry = self.ranges.get(index)?;
        Some(Announced::new((index, entry, entry.range()?)))
    }

    /// The announced range that has a frame. Cost: O(announced ranges), or O(1) near the last one.
    pub(crate) fn announced_at(&self, pfn: Pfn) -> Option<Announced<'_>> {
        self.ranges.at(pfn).map(Announced::new)
    }

    /// Boot memory, which is never removed.
    pub(super) fn fixed_ranges(&self) -> impl Iterator<Item = PfnRange> {
        self.announced().filter(|announced| announced.fixed).map(|announced| announced.range)
    }

    /// Whether one announced range has all of `range`.
    pub(crate) fn covers(&self, range: PfnRange) -> bool {
        self.ranges.at(range.start()).is_some_and(|(_, _, all)| all.covers(range))
    }

    /// An announced range that has a part of `range`.
    pub(crate) fn overlapping(&self, range: PfnRange) -> Option<PfnRange> {
        self.ranges.overlapping(range)
    }

    /// What the words of these ranges, which are named in ascending order, take beside what there
    /// is.
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

    /// What a node's record takes, if it is not there.
    #[cfg(not(loom))]
    pub(crate) fn missing_for_node(&self, node: NodeIndex) -> Needed {
        let mut count = PieceCount::beside(&self.directory);
        count.add_node(node);
        count.needed()
    }

    /// What is kept of a node, made if it is not there.
    #[cfg(not(loom))]
    pub(crate) fn install_node(
        &self,
        node: NodeIndex,
        supply: &mut impl Supply,
    ) -> Result<&NodeRecord, Missing> {
        self.directory.install_node(node, supply)
    }

    /// What a list of so many more ranges takes.
    #[cfg(not(loom))]
    pub(crate) fn missing_for_list(&self, ranges: usize) -> Needed {
        let mut needed = Needed::default();
        needed.add_single(self.ranges.frames_for(ranges));
        needed
    }

    /// Makes the words that sections of `range` do not have, and what they need to be `node`'s.
    /// Those that were made stay, also if it fails half-way.
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

    /// The sections of `range` are `node`'s from now on. They have words, those whose node changes
    /// have nothing else, and what they need to be the node's is there.
    pub(crate) fn set_node(&self, range: PfnRange, node: NodeIndex) {
        for section in range.sections().filter_map(|piece| SectionId::of(piece.start())) {
            self.directory.set_node(section, node);
        }
    }

    /// Puts `range` into the list of announced ranges; `node` is that of additions that name none.
    pub(crate) fn announce(
        &self,
        range: PfnRange,
        node: NodeId,
        fixed: bool,
        supply: &mut impl Supply,
    ) -> Result<RegionIndex, Missing> {
        self.ranges.insert(range, node.number(), fixed, supply)
    }

    /// Announces boot memory of a model, whose chunks, which `make` makes, have words for no more.
    #[cfg(loom)]
    pub(crate) fn announce_model<S: Supply>(
        &self,
        range: PfnRange,
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
        self.announce(range, NodeId::ZERO, true, supply).expect("boxes");
        self.set_node(range, node);
        self.directory.settle();
    }

    /// Retires the chunks of `range`, of which nothing is there or announced any more, in which
    /// nothing else is there.
    ///
    /// Cost: O(chunks).
    pub(crate) fn retire(&self, range: PfnRange) {
        chunks_of(range).for_each(|id| self.directory.retire(id));
    }

    /// Forgets all chunks that are retired, and names the frames that held them.
    #[cfg(not(loom))]
    pub(crate) fn forget_retired(&self, direct_map: DirectMap) -> impl Iterator<Item = PfnRange> {
        self.directory.forget_retired().filter_map(move |chunk| {
            let start = direct_map.frame_at(chunk.cast()).known()?;
            PfnRange::with_len(start, frames_of::<Chunk>())
        })
    }

    /// A model's memory, which is absent, comes to another node.
    #[cfg(loom)]
    pub(crate) fn move_model(&self, range: PfnRange, node: NodeId) {
        let mut nodes = self.naming();
        let node = nodes.name(node).expect("two nodes");
        nodes.keep();
        self.set_node(range, node);
    }

    /// Memory that all words take.
    #[cfg(not(loom))]
    pub(crate) fn reserved(&self) -> Bytes {
        let directory = self.directory.walk().map(|piece| piece.frames).sum::<u64>();
        let ranges = self.ranges.walk().map(|piece| piece.frames).sum::<u64>();
        Bytes((directory + ranges) * FRAME_SIZE)
    }

    /// The frames that hold words, and what they describe.
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

/// A section of each chunk that has a part of `range`, lowest first.
fn chunks_of(range: PfnRange) -> impl Iterator<Item = SectionId> {
    let chunk = (CHUNK_SECTIONS * SECTION_FRAMES) as u64;
    range.chunks(chunk).filter_map(|part| SectionId::of(part.start()))
}
