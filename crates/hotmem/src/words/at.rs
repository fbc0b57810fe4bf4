//! Handles: a section, a pageblock or a part of a range whose words were looked up.

use super::directory::{Chunk, NEIGHBOURHOODS, NodeIndex, PATH_LEN, SectionId};
use super::{AtomicBlockState, Class, FrameBitmap, NodeId, Section, Words, Zone};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, mask};
use crate::known::Known;
use core::ops::Deref;

/// A section that was looked up: its words and its number.
#[derive(Clone, Copy)]
pub(crate) struct SectionRef<'a> {
    all: &'a Words,
    chunk: &'a Chunk,
    words: &'a Section,
    id: SectionId,
}

/// A pageblock that was looked up: the words of its section, its block state, its place.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) section: SectionRef<'a>,
    pub(crate) state: &'a AtomicBlockState,
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
    pub(super) fn new(
        all: &'a Words,
        chunk: &'a Chunk,
        words: &'a Section,
        id: SectionId,
    ) -> SectionRef<'a> {
        SectionRef { all, chunk, words, id }
    }

    /// Its number.
    #[inline]
    pub(super) fn id(self) -> SectionId {
        self.id
    }

    /// Its first frame.
    #[inline]
    pub(crate) fn start(self) -> Pfn {
        self.id.start()
    }

    /// One past its last frame.
    pub(crate) fn end(self) -> Pfn {
        self.range().end()
    }

    /// Its frames, announced or not.
    pub(crate) fn range(self) -> PfnRange {
        let range = PfnRange::with_len(self.start(), SECTION_FRAMES as u64);
        range.known().unwrap_or(PfnRange::EMPTY)
    }

    /// An announced range that has a part of it.
    pub(crate) fn announced(self) -> PfnRange {
        self.all.overlapping(self.range()).unwrap_or(PfnRange::EMPTY)
    }

    /// Its pageblocks that have a frame in `range`.
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

    /// Where `runs_of` finds runs of `len` among `blocks`, none of which crosses from one announced
    /// range to another.
    pub(crate) fn runs_in_regions(
        self,
        blocks: u64,
        len: usize,
        runs_of: impl Fn(u64, usize) -> u64,
    ) -> u64 {
        if blocks == 0 || self.all.covers(self.range()) {
            return runs_of(blocks, len);
        }
        let announced = self.all.announced().map(|announced| announced.range);
        announced.fold(0, |runs, range| runs | runs_of(blocks & self.mask_of(range), len))
    }

    /// Its node.
    #[inline]
    pub(crate) fn node(self) -> NodeIndex {
        // The heads are made before the chunk.
        self.all.directory.node(self.id).unwrap_or(NodeIndex::FIRST)
    }

    /// Its pageblocks that are boot memory, which is never removed. Cost: O(announced ranges).
    pub(crate) fn fixed(self) -> u64 {
        self.all.fixed_ranges().fold(0, |fixed, range| fixed | self.mask_of(range))
    }

    /// The pageblock number `bit` of it.
    #[inline]
    pub(crate) fn block(self, bit: usize) -> Option<Block<'a>> {
        let state = self.chunk.state_of(self.id, bit)?;
        Some(Block { section: self, state, bit })
    }

    /// The pageblock of it that has a frame.
    #[inline]
    pub(super) fn block_at(self, pfn: Pfn) -> Option<Block<'a>> {
        #[allow(clippy::cast_possible_truncation, reason = "within a section")]
        let offset = (pfn.number() % SECTION_FRAMES as u64) as usize;
        self.block(offset / PAGEBLOCK_FRAMES)
    }

    /// Those of `blocks` that can be looked up: all of them.
    pub(crate) fn blocks(self, blocks: u64) -> impl Iterator<Item = Block<'a>> {
        crate::geometry::bits_of(blocks).filter_map(move |bit| self.block(bit).known())
    }

    /// `len` pageblocks from number `first` on.
    pub(crate) fn pageblocks(self, first: usize, len: usize) -> PfnRange {
        PfnRange::with_len(self.id.block(first), (len * PAGEBLOCK_FRAMES) as u64)
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

    /// The section that lies `sections` above it, if it has words and is of the same node.
    #[inline]
    pub(crate) fn above(self, sections: usize) -> Option<SectionRef<'a>> {
        if sections == 0 {
            return Some(self);
        }
        let id = SectionId::new(self.id.number() + sections as u64)?;
        self.all.section(id).filter(|above| above.node() == self.node())
    }

    /// The section and those beside it that one CPU should have for itself: their block states
    /// share no cache lines with those of others, and nor do their words of the trees where the
    /// announced range is large enough for that.
    pub(crate) fn neighbourhood(self) -> PfnRange {
        let [least, most] = NEIGHBOURHOODS.map(|sections| sections * SECTION_FRAMES as u64);
        let size = if self.announced().frames() / 16 < most { least } else { most };
        let start = self.start().align_down(size);
        PfnRange::with_len(start, size).unwrap_or(self.range())
    }

    /// Makes searches find it. The caller has just made some of it of this class.
    #[inline]
    pub(crate) fn make_findable(self, class: Class) {
        self.all.directory.set(class, self.id);
    }

    /// A searcher saw nothing of this class: searches no longer find it, unless it has some again.
    pub(crate) fn hide_if_empty(self, class: Class) {
        self.all.directory.clear(class, self.id, || self.words.available(class) == 0);
    }

    /// Searches no longer find it, whatever it has: its caller makes it findable otherwise.
    pub(crate) fn hide(self, class: Class) {
        self.all.directory.clear(class, self.id, || true);
    }

    /// Whether searches find it.
    pub(crate) fn is_findable(self, class: Class) -> bool {
        self.all.directory.leads_to(class, self.id)
    }

    /// How many words [`make_findable`](Self::make_findable) reads.
    pub(crate) const fn path_len() -> u64 {
        PATH_LEN
    }

    /// The frame bits of the pageblock number `bit`, once the section has any.
    #[inline]
    fn bitmap_of(self, bit: usize) -> Option<&'a FrameBitmap> {
        self.words.bitmap(bit)
    }
}

impl<'a> Block<'a> {
    /// Its first frame.
    #[inline]
    pub(crate) fn start(&self) -> Pfn {
        self.section.id.block(self.bit)
    }

    /// Its frames.
    pub(crate) fn range(&self) -> PfnRange {
        let range = PfnRange::with_len(self.start(), PAGEBLOCK_FRAMES as u64);
        range.known().unwrap_or(PfnRange::EMPTY)
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
    pub(crate) fn bitmap(&self) -> Option<&'a FrameBitmap> {
        self.section.bitmap_of(self.bit)
    }

    /// Its zone.
    #[inline]
    pub(crate) fn zone(&self) -> Zone {
        self.section.zone_of(self.bit)
    }

    /// Its node.
    #[inline]
    pub(crate) fn node(&self) -> NodeIndex {
        self.section.node()
    }

    /// Whether it belongs to a node.
    #[inline]
    pub(crate) fn is_on(&self, node: NodeId) -> bool {
        self.section.all.is_node(self.node(), node)
    }

    /// Whether this is boot memory, which is never removed. Cost: O(announced ranges), or O(1) near
    /// the last one that was looked for.
    pub(crate) fn is_fixed(&self) -> bool {
        self.section.all.announced_at(self.start()).is_some_and(|announced| announced.fixed)
    }
}
