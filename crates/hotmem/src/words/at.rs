//! Handles: a section, a pageblock or a part of a range whose words were looked up.

use super::region::Region;
use super::{Class, Counter, Line, NodeId, Section, Zone};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS};
use crate::known::Known;
use core::ops::Deref;

/// A section that was looked up: its words and its place.
#[derive(Clone, Copy)]
pub(crate) struct SectionRef<'a> {
    words: &'a Section,
    region: &'a Region,
    pub(super) slot: usize,
    pub(super) index: usize,
}

/// A pageblock that was looked up: the words of its section, its counter, its place.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) section: SectionRef<'a>,
    pub(crate) counter: &'a Counter,
    bit: usize,
}

/// The part of a range that lies in one section.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) section: SectionRef<'a>,
    /// The pageblocks that have a frame in the range.
    pub(crate) blocks: u64,
}

impl Deref for SectionRef<'_> {
    type Target = Section;
    #[inline]
    fn deref(&self) -> &Section {
        self.words
    }
}

impl PartialEq for SectionRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.words, other.words)
    }
}

impl<'a> SectionRef<'a> {
    #[inline]
    pub(super) fn look_up(region: &'a Region, slot: usize, index: usize) -> Option<Self> {
        Some(SectionRef { words: region.section(index)?, region, slot, index })
    }

    /// Its first frame, announced or not.
    pub(crate) fn start(self) -> Pfn {
        self.region.pfn_at(self.index * SECTION_FRAMES)
    }

    /// Its frames, announced or not. Empty for what an old hint names.
    pub(crate) fn range(self) -> PfnRange {
        PfnRange::with_len(self.start(), SECTION_FRAMES as u64).unwrap_or(PfnRange::EMPTY)
    }

    /// The first frame of it that is announced.
    pub(crate) fn begin(self) -> Pfn {
        self.start().max(self.announced().start())
    }

    /// One past the last frame of it that is announced.
    pub(crate) fn end(self) -> Pfn {
        let above = self.region.pfn_at((self.index + 1) * SECTION_FRAMES);
        above.min(self.announced().end())
    }

    /// The announced range that it belongs to, with it or a part of it.
    pub(crate) fn announced(self) -> PfnRange {
        self.region.range().unwrap_or(PfnRange::EMPTY)
    }

    /// Its pageblocks that have a frame in `range`.
    #[inline]
    pub(crate) fn mask_of(self, range: PfnRange) -> u64 {
        self.region.mask_of(self.index, range)
    }

    /// Its node.
    #[inline]
    pub(crate) fn node(self) -> NodeId {
        self.region.node()
    }

    /// Whether this is boot memory, which is never removed.
    pub(crate) fn is_fixed(self) -> bool {
        self.region.is_fixed()
    }

    /// The pageblock number `bit` of it.
    #[inline]
    pub(crate) fn block(self, bit: usize) -> Option<Block<'a>> {
        let (_, counter) = self.region.block(self.index, bit)?;
        Some(Block { section: self, counter, bit })
    }

    /// Those of `blocks` that can be looked up: all of them.
    pub(crate) fn blocks(self, blocks: u64) -> impl Iterator<Item = Block<'a>> {
        crate::geometry::bits_of(blocks).filter_map(move |bit| self.block(bit).known())
    }

    /// `len` pageblocks from number `first` on.
    pub(crate) fn pageblocks(self, first: usize, len: usize) -> PfnRange {
        let start = self.region.pfn_at(self.index * SECTION_FRAMES + first * PAGEBLOCK_FRAMES);
        PfnRange::with_len(start, (len * PAGEBLOCK_FRAMES) as u64)
            .known()
            .unwrap_or(PfnRange::EMPTY)
    }

    /// The frames of the lowest pageblock in `blocks`.
    pub(crate) fn first_block(self, blocks: u64) -> PfnRange {
        self.pageblocks(blocks.trailing_zeros() as usize, 1)
    }

    /// The frames of the highest pageblock in `blocks`.
    pub(crate) fn last_block(self, blocks: u64) -> PfnRange {
        self.pageblocks(blocks.checked_ilog2().unwrap_or(0) as usize, 1)
    }

    /// The section that lies `sections` above it, as far as all up to there belongs to the same
    /// announced range.
    #[inline]
    pub(crate) fn above(self, sections: usize) -> Option<SectionRef<'a>> {
        let index = self.index + sections;
        if index >= self.region.section_count() {
            return None;
        }
        SectionRef::look_up(self.region, self.slot, index)
    }

    /// The section and those beside it that one CPU should have for itself: their counters share no
    /// cache lines with those of others, and nor do the leaves of their trees where the announced
    /// range is large enough for that.
    pub(crate) fn neighbourhood(self) -> PfnRange {
        let size = self.region.neighbourhood();
        let start = self.region.pfn_at(self.index / size * size * SECTION_FRAMES);
        let end = self.region.pfn_at((self.index / size + 1) * size * SECTION_FRAMES);
        PfnRange::new(start, end).known().unwrap_or(PfnRange::EMPTY)
    }

    /// Makes searches find it. The caller has just made some of it of this class.
    #[inline]
    pub(crate) fn make_findable(self, class: Class) {
        self.region.tree(class).set(self.index);
    }

    /// A searcher saw nothing of this class: searches no longer find it, unless it has some again.
    pub(crate) fn hide_if_empty(self, class: Class) {
        let is_empty = || self.words.available(class) == 0;
        self.region.tree(class).clear_leaf(self.index, is_empty);
    }

    /// Searches no longer find it, whatever it has: its caller makes it findable otherwise.
    pub(crate) fn hide(self, class: Class) {
        self.region.tree(class).clear_leaf(self.index, || true);
    }

    /// Whether searches find it.
    pub(crate) fn is_findable(self, class: Class) -> bool {
        self.region.tree(class).leads_to(self.index)
    }

    /// How many words [`make_findable`](Self::make_findable) reads.
    pub(crate) fn path_len(self, class: Class) -> u64 {
        self.region.tree(class).height() as u64
    }

    /// The frame bits of the pageblock number `bit`, once the section has any.
    #[inline]
    fn line_of(self, bit: usize) -> Option<&'a Line> {
        self.words.line(bit)
    }
}

impl<'a> Block<'a> {
    /// The pageblock number `bit` of section `index` of a region.
    #[inline]
    pub(super) fn look_up(
        region: &'a Region,
        slot: usize,
        index: usize,
        bit: usize,
    ) -> Option<Block<'a>> {
        let (words, counter) = region.block(index, bit)?;
        Some(Block { section: SectionRef { words, region, slot, index }, counter, bit })
    }

    /// Its first frame.
    #[inline]
    pub(crate) fn start(&self) -> Pfn {
        let at = (self.section.index * SECTION_PAGEBLOCKS + self.bit) * PAGEBLOCK_FRAMES;
        self.section.region.pfn_at(at)
    }

    /// Its frames. Empty for what an old hint names.
    pub(crate) fn range(&self) -> PfnRange {
        PfnRange::with_len(self.start(), PAGEBLOCK_FRAMES as u64).unwrap_or(PfnRange::EMPTY)
    }

    /// The parts of `range`, which one announced range has with this pageblock, by pageblock.
    pub(crate) fn blocks_of(self, range: PfnRange) -> impl Iterator<Item = (Block<'a>, PfnRange)> {
        let SectionRef { region, slot, .. } = self.section;
        range.chunks(PAGEBLOCK_FRAMES as u64).filter_map(move |piece| {
            let offset = region.offset_of(piece.start())?;
            let (index, bit) =
                (offset / SECTION_FRAMES, offset % SECTION_FRAMES / PAGEBLOCK_FRAMES);
            Some((Block::look_up(region, slot, index, bit)?, piece))
        })
    }

    /// The number within it of one of its frames.
    #[allow(clippy::cast_possible_truncation, reason = "below 512")]
    pub(crate) fn offset_of(&self, frame: Pfn) -> usize {
        (frame.number() - self.start().number()) as usize
    }

    /// Its number in its section.
    #[inline]
    pub(crate) fn bit(&self) -> usize {
        self.bit
    }

    /// Its bit in the section's words.
    #[inline]
    pub(crate) fn mask(&self) -> u64 {
        1 << self.bit
    }

    /// Its frame bits, once the section has any.
    #[inline]
    pub(crate) fn line(&self) -> Option<&'a Line> {
        self.section.line_of(self.bit)
    }

    /// Its zone.
    #[inline]
    pub(crate) fn zone(&self) -> Zone {
        self.section.zone_of(self.bit)
    }

    /// Its node.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        self.section.node()
    }

    /// Whether this is boot memory, which is never removed.
    pub(crate) fn is_fixed(&self) -> bool {
        self.section.is_fixed()
    }
}
