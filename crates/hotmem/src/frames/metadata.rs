//! What the engine keeps for itself: the words of regions, and the frame bits of sections.

use super::Frames;
use crate::addr::{Bytes, PfnRange};
use crate::geometry::{FRAME_SIZE, SECTION_FRAMES};
use crate::platform::Platform;
use crate::region::Region;

/// Frames that the engine keeps for itself, and what it needs them for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The frames.
    pub frames: PfnRange,
    /// What they describe: a whole region by its words, or a section by its frame bits. Empty for
    /// the words of a region that was withdrawn.
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

    /// All frames that hold the engine's own metadata. They are never free, reported or migrated.
    /// A snapshot. Cost: O(sections).
    pub fn metadata(&self) -> impl Iterator<Item = Metadata> {
        self.metadata_where(true)
    }

    /// The words of all regions, and, if `lines`, the frames of lines.
    pub(crate) fn metadata_where(&self, lines: bool) -> impl Iterator<Item = Metadata> {
        (0..self.regions().len()).flat_map(move |slot| {
            let lines = if lines { Some(self.lines_of(slot)) } else { None };
            self.words_of_region(slot).into_iter().chain(lines.into_iter().flatten())
        })
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
