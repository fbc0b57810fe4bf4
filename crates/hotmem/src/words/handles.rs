//! Defines the handles that look-ups return: a section, a pageblock, and the pageblocks of a
//! section that lie in a range.

use super::directory::{NEIGHBOURHOODS, NodeIndex, SectionId};
use super::{
    AtomicBlockState, BlockState, Class, FrameBitmap, NodeId, Section, SectionWords, Zone,
};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_GROUP, PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::invariant::OrRecordViolation;
use crate::sync::Ordering;
use core::ops::Deref;

/// A section that was looked up: its words and its number.
#[derive(Clone, Copy)]
pub(crate) struct SectionRef<'a> {
    words: &'a Section,
    id: SectionId,
}

/// A pageblock that was looked up: the words of its section, and its number, which is the number of
/// its first frame, divided by the number of frames of a pageblock.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    words: &'a Section,
    number: u64,
}

/// A section, and those of its pageblocks that lie in a range.
#[derive(Clone, Copy)]
pub(crate) struct SectionPart<'a> {
    pub(crate) section: SectionRef<'a>,
    /// The pageblocks that have a frame in the range.
    pub(crate) blocks: u64,
}

impl Deref for SectionRef<'_> {
    type Target = Section;
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
    pub(super) fn new(words: &'a Section, id: SectionId) -> SectionRef<'a> {
        SectionRef { words, id }
    }

    /// Returns the number of the section.
    pub(super) fn id(self) -> SectionId {
        self.id
    }

    /// Returns the first frame of the section.
    #[inline(never)]
    pub(crate) fn start(self) -> Pfn {
        self.id.start()
    }

    /// Returns the frame after the last one of the section.
    pub(crate) fn end(self) -> Pfn {
        self.range().end()
    }

    /// Returns the frames of the section, announced or not.
    #[inline(never)]
    pub(crate) fn range(self) -> PfnRange {
        let range = PfnRange::with_len(self.start(), SECTION_FRAMES as u64);
        range.or_record_violation().unwrap_or(PfnRange::EMPTY)
    }

    /// Returns an announced range that overlaps the section, or an empty range if none does.
    pub(crate) fn announced(self, words: &SectionWords) -> PfnRange {
        words.overlapping(self.range()).unwrap_or(PfnRange::EMPTY)
    }

    /// Returns the pageblocks of the section that have a frame in `range`.
    #[inline(never)]
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
        words: &SectionWords,
        blocks: u64,
        len: usize,
        runs_of: impl Fn(u64, usize) -> u64,
    ) -> u64 {
        if blocks == 0 || words.covers(self.range()) {
            return runs_of(blocks, len);
        }
        let announced = words.announced().map(|announced| announced.range);
        announced.fold(0, |runs, range| runs | runs_of(blocks & self.mask_of(range), len))
    }

    /// Returns the node of the section.
    #[inline(never)]
    pub(crate) fn node(self, words: &SectionWords) -> NodeIndex {
        // The chunk header exists: the control path makes it before it makes the chunk.
        words.directory.node(self.id).unwrap_or(NodeIndex::FIRST)
    }

    /// Returns the pageblocks of the section that are boot memory. Cost: O(announced ranges).
    pub(crate) fn boot_blocks(self, words: &SectionWords) -> u64 {
        words.boot_ranges().fold(0, |boot, range| boot | self.mask_of(range))
    }

    /// Returns pageblock number `bit` of the section.
    pub(crate) fn block(self, bit: usize) -> Option<Block<'a>> {
        let number = self.id.number() * SECTION_PAGEBLOCKS as u64 + bit as u64;
        (bit < SECTION_PAGEBLOCKS).then_some(Block { words: self.words, number })
    }

    /// Returns the pageblock of the section that has this frame.
    pub(super) fn block_at(self, pfn: Pfn) -> Option<Block<'a>> {
        #[allow(clippy::cast_possible_truncation, reason = "within a section")]
        let offset = (pfn.number() % SECTION_FRAMES as u64) as usize;
        self.block(offset / PAGEBLOCK_FRAMES)
    }

    /// Iterates over the pageblocks in `blocks`.
    pub(crate) fn blocks(self, blocks: u64) -> impl Iterator<Item = Block<'a>> {
        crate::geometry::bits_of(blocks)
            .filter_map(move |bit| self.block(bit).or_record_violation())
    }

    /// Returns the first frame of the group of pageblocks whose bitmaps lie in the same frame of
    /// memory as the bitmap of pageblock `bit`.
    pub(crate) fn start_of_bitmaps(self, bit: usize) -> Pfn {
        self.id.block_start(bit / BITMAP_GROUP * BITMAP_GROUP)
    }

    /// Returns the frames of `len` pageblocks from number `first` on.
    #[inline(never)]
    pub(crate) fn pageblocks(self, first: usize, len: usize) -> PfnRange {
        PfnRange::with_len(self.id.block_start(first), (len * PAGEBLOCK_FRAMES) as u64)
            .or_record_violation()
            .unwrap_or(PfnRange::EMPTY)
    }

    /// Returns the frames of the lowest pageblock in `blocks`.
    #[inline(never)]
    pub(crate) fn first_block(self, blocks: u64) -> PfnRange {
        self.pageblocks(blocks.trailing_zeros() as usize, 1)
    }

    /// Returns the frames of the highest pageblock in `blocks`.
    pub(crate) fn last_block(self, blocks: u64) -> PfnRange {
        self.pageblocks(blocks.checked_ilog2().unwrap_or(0) as usize, 1)
    }

    /// Returns the section that is `sections` sections above this one, if it has words and belongs
    /// to the same node.
    #[inline(never)]
    pub(crate) fn above(self, words: &'a SectionWords, sections: usize) -> Option<SectionRef<'a>> {
        if sections == 0 {
            return Some(self);
        }
        let id = SectionId::new(self.id.number() + sections as u64)?;
        words.section(id).filter(|above| above.node(words) == self.node(words))
    }

    /// Returns the frames of the neighbourhood of the section: sections that one CPU should have
    /// for itself. If the announced range is large enough, the tree words of these sections share
    /// no cache lines with those of other sections.
    pub(crate) fn neighbourhood(self, words: &SectionWords) -> PfnRange {
        let [least, most] = NEIGHBOURHOODS.map(|sections| sections * SECTION_FRAMES as u64);
        let size = if self.announced(words).frames() / 16 < most { least } else { most };
        let start = self.start().align_down(size);
        PfnRange::with_len(start, size).unwrap_or(self.range())
    }

    /// Makes searches for this class find the section. The caller must have just made some of its
    /// pageblocks belong to the class.
    #[inline]
    pub(crate) fn make_findable(self, words: &SectionWords, class: Class) {
        words.directory.set_path(class, self.id);
    }

    /// Makes searches for this class skip the section, because a searcher has found no pageblocks
    /// of the class in it. If the section has such pageblocks again by now, searches still find it.
    pub(crate) fn hide_if_empty(self, words: &SectionWords, class: Class) {
        words.directory.hide_if_empty(class, self.id);
    }

    /// Makes searches for this class skip the section, even if it has pageblocks of the class. The
    /// caller makes the section findable in another way. Returns whether searches found it before.
    pub(crate) fn hide(self, words: &SectionWords, class: Class) -> bool {
        words.directory.clear_section_bit(class, self.id)
    }

    /// Returns whether searches for this class find the section.
    pub(crate) fn is_findable(self, words: &SectionWords, class: Class) -> bool {
        words.directory.leads_to(class, self.id)
    }

    /// Returns the words of the section.
    pub(crate) fn words(self) -> &'a Section {
        self.words
    }
}

impl<'a> Block<'a> {
    /// Returns the section of the pageblock.
    pub(crate) fn section(self) -> SectionRef<'a> {
        let id = SectionId::from_number(self.number / SECTION_PAGEBLOCKS as u64);
        SectionRef { words: self.words, id }
    }

    /// Returns the number of the pageblock.
    pub(super) fn number(self) -> u64 {
        self.number
    }

    /// Returns the block state of the pageblock.
    pub(crate) fn state(self) -> &'a AtomicBlockState {
        self.words.state(self.bit())
    }

    /// Returns whether the pageblock's `free` bit is set. `SeqCst`: whoever flags a block state and
    /// then finds the bit clear has set the flag before the pageblock is published (see
    /// `frames/whole/stale.rs`).
    #[inline]
    pub(crate) fn is_free(self) -> bool {
        self.words.free.load(Ordering::SeqCst) & self.mask() != 0
    }

    /// Returns the block state if the pageblock is divided or allocated as a whole. A concurrent
    /// free may make the result out of date.
    #[inline]
    pub(crate) fn live_state(self) -> Option<BlockState> {
        let state = self.state().load();
        let is_stale = state.is_whole() && self.is_free();
        (state.is_live() && !is_stale).then_some(state)
    }

    /// Returns the first frame of the pageblock.
    #[inline(never)]
    pub(crate) fn start(self) -> Pfn {
        self.start_inlined()
    }

    /// Does the same as [`start`](Self::start) without a function call, for the fast paths.
    pub(crate) fn start_inlined(self) -> Pfn {
        Pfn::new(self.number * PAGEBLOCK_FRAMES as u64).unwrap_or(Pfn::LIMIT)
    }

    /// Returns the frames of the pageblock.
    #[inline(never)]
    pub(crate) fn range(self) -> PfnRange {
        let range = PfnRange::with_len(self.start(), PAGEBLOCK_FRAMES as u64);
        range.or_record_violation().unwrap_or(PfnRange::EMPTY)
    }

    /// Returns the number of `frame` within the pageblock, which must have the frame.
    #[allow(clippy::cast_possible_truncation, reason = "below 512")]
    pub(crate) fn offset_of(self, frame: Pfn) -> usize {
        (frame.number() - self.start().number()) as usize
    }

    /// Returns the number of the pageblock in its section.
    #[allow(clippy::cast_possible_truncation, reason = "within a section")]
    pub(crate) fn bit(self) -> usize {
        (self.number % SECTION_PAGEBLOCKS as u64) as usize
    }

    /// Returns the bit of the pageblock in the words of its section.
    pub(crate) fn mask(self) -> u64 {
        1 << self.bit()
    }

    /// Returns the frame bitmap of the pageblock, if it is a lasting bitmap.
    #[inline]
    pub(crate) fn lasting_bitmap(self) -> Option<&'a FrameBitmap> {
        self.words.bitmaps.lasting(self.bit())
    }

    /// Returns the zone of the pageblock.
    #[inline]
    pub(crate) fn zone(self) -> Zone {
        self.words.zone_of(self.bit())
    }

    /// Returns the node of the pageblock.
    #[inline(never)]
    pub(crate) fn node(self, words: &SectionWords) -> NodeIndex {
        self.section().node(words)
    }

    /// Returns whether the pageblock belongs to `node`.
    #[inline(never)]
    pub(crate) fn is_on(self, words: &SectionWords, node: NodeId) -> bool {
        words.is_node(self.node(words), node)
    }

    /// Returns whether the pageblock is boot memory. Cost: O(announced ranges), or O(1) if the last
    /// look-up by frame found the same range.
    pub(crate) fn is_boot(self, words: &SectionWords) -> bool {
        words.announced_at(self.start()).is_some_and(|announced| announced.is_boot)
    }
}
