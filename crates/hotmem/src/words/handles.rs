//! Defines the handles that look-ups return: a section, a pageblock, and the pageblocks of a
//! section that lie in a range.

use super::directory::{NEIGHBOURHOODS, NodeIndex, PATH_LEN, SectionId};
use super::{AtomicBlockState, Class, FrameBitmap, NodeId, Section, Words, Zone};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_GROUP, PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::known::Known;
use core::ops::Deref;

/// A section that was looked up: its words and its number.
#[derive(Clone, Copy)]
pub(crate) struct SectionRef<'a> {
    machine_words: &'a Words,
    words: &'a Section,
    id: SectionId,
}

/// A pageblock that was looked up: its section, and its number in the section.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) section: SectionRef<'a>,
    bit: usize,
}

/// A section, and those of its pageblocks that lie in a range.
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
    pub(super) fn new(
        machine_words: &'a Words,
        words: &'a Section,
        id: SectionId,
    ) -> SectionRef<'a> {
        SectionRef { machine_words, words, id }
    }

    /// Returns the number of the section.
    #[inline]
    pub(super) fn id(self) -> SectionId {
        self.id
    }

    /// Returns the first frame of the section.
    #[inline]
    pub(crate) fn start(self) -> Pfn {
        self.id.start()
    }

    /// Returns the frame after the last one of the section.
    pub(crate) fn end(self) -> Pfn {
        self.range().end()
    }

    /// Returns the frames of the section, announced or not.
    pub(crate) fn range(self) -> PfnRange {
        let range = PfnRange::with_len(self.start(), SECTION_FRAMES as u64);
        range.known().unwrap_or(PfnRange::EMPTY)
    }

    /// Returns an announced range that overlaps the section, or an empty range if none does.
    pub(crate) fn announced(self) -> PfnRange {
        self.machine_words.overlapping(self.range()).unwrap_or(PfnRange::EMPTY)
    }

    /// Returns the pageblocks of the section that have a frame in `range`.
    #[inline]
    pub(crate) fn mask_of(self, range: PfnRange) -> u64 {
        let start = self.start().number();
        let below = |pfn: Pfn, round: u64| {
            let frames = pfn.number().saturating_sub(start).min(SECTION_FRAMES as u64);
            #[allow(clippy::cast_possible_truncation, reason = "at most 64")]
            mask(((frames + round) / PAGEBLOCK_FRAMES as u64) as usize)
        };
        if range.is_empty() {
            return 0;
        }
        below(range.end(), PAGEBLOCK_FRAMES as u64 - 1) & !below(range.start(), 0)
    }

    /// Returns the pageblocks at which a run of `len` pageblocks of `blocks` starts, if the run
    /// lies within one announced range. `runs_of(blocks, len)` finds the runs in a mask.
    pub(crate) fn runs_in_regions(
        self,
        blocks: u64,
        len: usize,
        runs_of: impl Fn(u64, usize) -> u64,
    ) -> u64 {
        if blocks == 0 || self.machine_words.covers(self.range()) {
            return runs_of(blocks, len);
        }
        let announced = self.machine_words.announced().map(|announced| announced.range);
        announced.fold(0, |runs, range| runs | runs_of(blocks & self.mask_of(range), len))
    }

    /// Returns the node of the section.
    #[inline]
    pub(crate) fn node(self) -> NodeIndex {
        // The head exists: the control path makes the heads before it makes the chunk.
        self.machine_words.directory.node(self.id).unwrap_or(NodeIndex::FIRST)
    }

    /// Returns the pageblocks of the section that are boot memory. Cost: O(announced ranges).
    pub(crate) fn boot_blocks(self) -> u64 {
        self.machine_words.boot_ranges().fold(0, |boot, range| boot | self.mask_of(range))
    }

    /// Returns pageblock number `bit` of the section.
    #[inline]
    pub(crate) fn block(self, bit: usize) -> Option<Block<'a>> {
        (bit < SECTION_PAGEBLOCKS).then_some(Block { section: self, bit })
    }

    /// Returns the pageblock of the section that has this frame.
    #[inline]
    pub(super) fn block_at(self, pfn: Pfn) -> Option<Block<'a>> {
        #[allow(clippy::cast_possible_truncation, reason = "within a section")]
        let offset = (pfn.number() % SECTION_FRAMES as u64) as usize;
        self.block(offset / PAGEBLOCK_FRAMES)
    }

    /// Iterates over the pageblocks in `blocks`.
    pub(crate) fn blocks(self, blocks: u64) -> impl Iterator<Item = Block<'a>> {
        crate::geometry::bits_of(blocks).filter_map(move |bit| self.block(bit).known())
    }

    /// Returns the first frame of the group of pageblocks whose bitmaps lie in the same frame of
    /// memory as the bitmap of pageblock `bit`.
    pub(crate) fn start_of_bitmaps(self, bit: usize) -> Pfn {
        self.id.block_start(bit / BITMAP_GROUP * BITMAP_GROUP)
    }

    /// Returns the frames of `len` pageblocks from number `first` on.
    pub(crate) fn pageblocks(self, first: usize, len: usize) -> PfnRange {
        PfnRange::with_len(self.id.block_start(first), (len * PAGEBLOCK_FRAMES) as u64)
            .known()
            .unwrap_or(PfnRange::EMPTY)
    }

    /// Returns the frames of the lowest pageblock in `blocks`.
    pub(crate) fn first_block(self, blocks: u64) -> PfnRange {
        self.pageblocks(blocks.trailing_zeros() as usize, 1)
    }

    /// Returns the frames of the highest pageblock in `blocks`.
    pub(crate) fn last_block(self, blocks: u64) -> PfnRange {
        self.pageblocks(blocks.checked_ilog2().unwrap_or(0) as usize, 1)
    }

    /// Returns the section that is `sections` sections above this one, if it has words and belongs
    /// to the same node.
    #[inline]
    pub(crate) fn above(self, sections: usize) -> Option<SectionRef<'a>> {
        if sections == 0 {
            return Some(self);
        }
        let id = SectionId::new(self.id.number() + sections as u64)?;
        self.machine_words.section(id).filter(|above| above.node() == self.node())
    }

    /// Returns the frames of the neighbourhood of the section: sections that one CPU should have
    /// for itself. If the announced range is large enough, the tree words of these sections share
    /// no cache lines with those of other sections.
    pub(crate) fn neighbourhood(self) -> PfnRange {
        let [least, most] = NEIGHBOURHOODS.map(|sections| sections * SECTION_FRAMES as u64);
        let size = if self.announced().frames() / 16 < most { least } else { most };
        let start = self.start().align_down(size);
        PfnRange::with_len(start, size).unwrap_or(self.range())
    }

    /// Makes searches for this class find the section. The caller has just made some of its
    /// pageblocks belong to the class.
    #[inline]
    pub(crate) fn make_findable(self, class: Class) {
        self.machine_words.directory.set_path(class, self.id);
    }

    /// Makes searches for this class skip the section, because a searcher has found no pageblocks
    /// of the class in it. If the section has such pageblocks again by now, searches still find it.
    pub(crate) fn hide_if_empty(self, class: Class) {
        self.machine_words
            .directory
            .clear_section_bit(class, self.id, || self.words.available(class) == 0);
    }

    /// Makes searches for this class skip the section, even if it has pageblocks of the class. The
    /// caller makes the section findable in another way.
    pub(crate) fn hide(self, class: Class) {
        self.machine_words.directory.clear_section_bit(class, self.id, || true);
    }

    /// Returns whether searches for this class find the section.
    pub(crate) fn is_findable(self, class: Class) -> bool {
        self.machine_words.directory.leads_to(class, self.id)
    }

    /// Returns how many words [`make_findable`](Self::make_findable) reads.
    pub(crate) const fn path_len() -> u64 {
        PATH_LEN
    }

    /// Returns the words of the section.
    #[inline]
    pub(crate) fn words(self) -> &'a Section {
        self.words
    }
}

impl<'a> Block<'a> {
    /// Returns the block state of the pageblock.
    #[inline]
    pub(crate) fn state(&self) -> &'a AtomicBlockState {
        self.section.words.state(self.bit)
    }

    /// Returns the first frame of the pageblock.
    #[inline]
    pub(crate) fn start(&self) -> Pfn {
        self.section.id.block_start(self.bit)
    }

    /// Returns the frames of the pageblock.
    pub(crate) fn range(&self) -> PfnRange {
        let range = PfnRange::with_len(self.start(), PAGEBLOCK_FRAMES as u64);
        range.known().unwrap_or(PfnRange::EMPTY)
    }

    /// Returns the number of `frame` within the pageblock, which must have the frame.
    #[allow(clippy::cast_possible_truncation, reason = "below 512")]
    pub(crate) fn offset_of(&self, frame: Pfn) -> usize {
        (frame.number() - self.start().number()) as usize
    }

    /// Returns the number of the pageblock in its section.
    #[inline]
    pub(crate) fn bit(&self) -> usize {
        self.bit
    }

    /// Returns the bit of the pageblock in the words of its section.
    #[inline]
    pub(crate) fn mask(&self) -> u64 {
        1 << self.bit
    }

    /// Returns the frame bitmap of the pageblock, if it is a lasting bitmap.
    #[inline]
    pub(crate) fn lasting_bitmap(&self) -> Option<&'a FrameBitmap> {
        self.section.words.bitmaps.lasting(self.bit)
    }

    /// Returns the zone of the pageblock.
    #[inline]
    pub(crate) fn zone(&self) -> Zone {
        self.section.zone_of(self.bit)
    }

    /// Returns the node of the pageblock.
    #[inline]
    pub(crate) fn node(&self) -> NodeIndex {
        self.section.node()
    }

    /// Returns whether the pageblock belongs to `node`.
    #[inline]
    pub(crate) fn is_on(&self, node: NodeId) -> bool {
        self.section.machine_words.is_node(self.node(), node)
    }

    /// Returns whether the pageblock is boot memory. Cost: O(announced ranges), or O(1) if the last
    /// look-up by frame found the same range.
    pub(crate) fn is_boot(&self) -> bool {
        self.section
            .machine_words
            .announced_at(self.start())
            .is_some_and(|announced| announced.is_boot)
    }
}
