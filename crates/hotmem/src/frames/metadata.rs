//! What the engine keeps for itself: the words of sections, and the frame bits of sections; and for
//! the kernel: descriptors of sections that lie in the sections themselves.

use super::Frames;
#[cfg(not(loom))]
use crate::addr::Bytes;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::platform::Platform;
use crate::words::SectionRef;

/// Frames that the engine keeps for itself or for the kernel's descriptors, and what for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The frames.
    pub frames: PfnRange,
    /// What they describe: sections by their words, a section by its frame bits or the kernel's
    /// descriptors, or all sections in which boot found reserved memory. Empty for what describes
    /// nodes or regions, and for what is kept for words of memory that is to come.
    pub describes: PfnRange,
}

impl<P: Platform> Frames<P> {
    /// Memory that holds the engine's words, or is kept for some. Cost: O(sections) that have any.
    #[cfg(not(loom))]
    #[must_use]
    pub fn metadata_reserved(&self) -> Bytes {
        let kept = self.kept_for_words().map(|metadata| metadata.frames.bytes());
        kept.fold(self.words.reserved(), |sum, kept| sum + kept)
    }

    /// All frames that hold the engine's own metadata, and pageblocks that the kernel
    /// [keeps](crate::Mapping::keeps). They are never free, reported or migrated. A snapshot. Cost:
    /// O(sections).
    pub fn metadata(&self) -> impl Iterator<Item = Metadata> {
        self.metadata_where(true).chain(self.words.sections().filter_map(kept_of))
    }

    /// How many frames of `range` hold descriptors of their own sections.
    pub(crate) fn kept_in(&self, range: PfnRange) -> u64 {
        let kept = self.words.parts(range).map(|part| part.blocks & kept(part.section));
        kept.map(|kept| u64::from(kept.count_ones()) * PAGEBLOCK_FRAMES as u64).sum()
    }

    /// The words of all sections, the bitmaps of what is reserved, and, if `bitmaps`, the bitmap
    /// frames.
    pub(crate) fn metadata_where(&self, bitmaps: bool) -> impl Iterator<Item = Metadata> {
        let bitmaps = bitmaps.then(|| self.words.sections().filter_map(|s| self.bitmaps_of(s)));
        let reserved = self.reserved.memory(self.direct_map());
        let reserved = reserved.map(|(frames, describes)| Metadata { frames, describes });
        self.words_of_sections().chain(bitmaps.into_iter().flatten()).chain(reserved)
    }

    #[cfg(not(loom))]
    fn words_of_sections(&self) -> impl Iterator<Item = Metadata> {
        let pieces = self.words.memory(self.direct_map());
        let pieces = pieces.map(|(frames, describes)| Metadata { frames, describes });
        pieces.chain(self.kept_for_words())
    }

    #[cfg(loom)]
    fn words_of_sections(&self) -> impl Iterator<Item = Metadata> {
        core::iter::empty()
    }

    fn bitmaps_of(&self, section: SectionRef<'_>) -> Option<Metadata> {
        let frames = PfnRange::with_len(self.frame_of_bitmaps(section)?, 1)?;
        Some(Metadata { frames, describes: section.range() })
    }
}

/// The pageblocks of a section that hold its own descriptors: the first so many.
pub(crate) fn kept(section: SectionRef<'_>) -> u64 {
    let is_kept =
        |&bit: &usize| section.block(bit).is_some_and(|block| block.state.load().is_kept());
    mask((0..SECTION_PAGEBLOCKS).take_while(is_kept).count())
}

fn kept_of(section: SectionRef<'_>) -> Option<Metadata> {
    let pageblocks = u64::from(kept(section).count_ones());
    let frames = PfnRange::with_len(section.start(), pageblocks * PAGEBLOCK_FRAMES as u64)?;
    (pageblocks != 0).then_some(Metadata { frames, describes: section.range() })
}
