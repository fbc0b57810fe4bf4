//! What the engine keeps for itself: the words of regions, and the frame bits of sections; and for
//! the kernel: descriptors of sections that lie in the sections themselves.

use super::Frames;
use crate::addr::{Bytes, PfnRange};
use crate::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::platform::Platform;
use crate::region::Region;

/// Frames that the engine keeps for itself or for the kernel's descriptors, and what for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The frames.
    pub frames: PfnRange,
    /// What they describe: a whole region by its words, a section by its frame bits or the
    /// kernel's descriptors, or all sections in which boot found reserved memory. Empty for the
    /// words of a region that was withdrawn.
    pub describes: PfnRange,
}

impl<P: Platform> Frames<P> {
    /// Memory that holds the engine's words for what is announced now. Cost: O(regions).
    #[must_use]
    pub fn metadata_reserved(&self) -> Bytes {
        let layouts = self.regions().iter().filter_map(Region::range);
        let bytes = layouts.map(|range| {
            #[cfg(not(loom))]
            let bytes = crate::region::Layout::for_range(range).bytes() as u64;
            #[cfg(loom)]
            let bytes = range.frames();
            bytes.next_multiple_of(FRAME_SIZE)
        });
        Bytes(bytes.sum())
    }

    /// All frames that hold the engine's own metadata, and pageblocks that the kernel
    /// [keeps](crate::Hooks::keeps). They are never free, reported or migrated. A snapshot. Cost:
    /// O(sections).
    pub fn metadata(&self) -> impl Iterator<Item = Metadata> {
        let slots = 0..self.regions().len();
        self.metadata_where(true).chain(slots.flat_map(|slot| self.kept_of(slot)))
    }

    /// The pageblocks of a section that hold its own descriptors: the first so many.
    pub(crate) fn kept(&self, slot: usize, index: usize) -> u64 {
        let is_kept = |&bit: &usize| {
            self.block(slot, index, bit).is_some_and(|block| block.counter.is_kept())
        };
        mask((0..SECTION_PAGEBLOCKS).take_while(is_kept).count())
    }

    /// How many frames of `range` hold descriptors of their own sections.
    pub(crate) fn kept_in(&self, range: PfnRange) -> u64 {
        let words = self.words_of(range);
        let kept = words.map(|(slot, index, blocks)| blocks & self.kept(slot, index));
        kept.map(|kept| u64::from(kept.count_ones()) * PAGEBLOCK_FRAMES as u64).sum()
    }

    fn kept_of(&self, slot: usize) -> impl Iterator<Item = Metadata> {
        let region = &self.slots()[slot];
        (0..region.section_count()).filter_map(move |index| {
            let pageblocks = u64::from(self.kept(slot, index).count_ones());
            let start = region.pfn_at(index * SECTION_FRAMES);
            let frames = PfnRange::with_len(start, pageblocks * PAGEBLOCK_FRAMES as u64)?;
            let describes = PfnRange::with_len(start, SECTION_FRAMES as u64)?;
            (pageblocks != 0).then_some(Metadata { frames, describes })
        })
    }

    /// The words of all regions and of what is reserved, and, if `lines`, the frames of lines.
    pub(crate) fn metadata_where(&self, lines: bool) -> impl Iterator<Item = Metadata> {
        let regions = (0..self.regions().len()).flat_map(move |slot| {
            let lines = if lines { Some(self.lines_of(slot)) } else { None };
            self.words_of_region(slot).into_iter().chain(lines.into_iter().flatten())
        });
        regions.chain(self.reserved.metadata(self.direct_map()))
    }

    #[cfg(not(loom))]
    fn words_of_region(&self, slot: usize) -> Option<Metadata> {
        let region = self.slots().get(slot)?;
        let (start, layout) = region.words()?;
        let frames = (layout.bytes() as u64).div_ceil(FRAME_SIZE);
        let frames = PfnRange::with_len(self.direct_map().frame_at(start)?, frames)?;
        Some(Metadata { frames, describes: region.range().unwrap_or(PfnRange::EMPTY) })
    }

    #[cfg(loom)]
    fn words_of_region(&self, _: usize) -> Option<Metadata> {
        None
    }

    fn lines_of(&self, slot: usize) -> impl Iterator<Item = Metadata> {
        let region = &self.slots()[slot];
        let sections = (0..region.section_count()).map(move |index| (index, region.range()));
        sections.filter_map(move |(index, range)| {
            let frames = PfnRange::with_len(self.frame_of_lines(slot, index)?, 1)?;
            let start = region.pfn_at(index * SECTION_FRAMES);
            let section = PfnRange::with_len(start, SECTION_FRAMES as u64)?;
            Some(Metadata { frames, describes: section.intersection(range?) })
        })
    }
}
