//! Lists metadata: frames that hold words or frame bitmaps, and pageblocks that hold the kernel's
//! descriptors of their own section.

use super::Frames;
#[cfg(not(loom))]
use crate::addr::Bytes;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::platform::Platform;
use crate::words::SectionRef;

/// Frames that hold metadata, and the memory that the metadata describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The frames.
    pub frames: PfnRange,
    /// The memory that the metadata describes: sections for words; one section for frame bitmaps
    /// and for the kernel's descriptors; for the record of reserved memory, all sections that had
    /// some at boot. Empty for metadata of nodes, regions or CPUs, and for frames in the word
    /// reserve.
    pub describes: PfnRange,
}

impl<P: Platform> Frames<P> {
    /// Returns the size of the memory that holds words or records of CPUs, or is in the word
    /// reserve. Cost: O(sections with words).
    #[cfg(not(loom))]
    #[must_use]
    pub fn metadata_reserved(&self) -> Bytes {
        let kept = self.kept_for_words().chain(self.records_of_cpus());
        let kept = kept.map(|metadata| metadata.frames.bytes());
        kept.fold(self.words.reserved(), |sum, kept| sum + kept)
    }

    /// Returns all frames that hold the engine's own metadata, and all pageblocks that the kernel
    /// [keeps](crate::Mapping::keeps). They are never free, reported or migrated. A snapshot. Cost:
    /// O(sections).
    pub fn metadata(&self) -> impl Iterator<Item = Metadata> {
        self.metadata_where(true).chain(self.words.sections().filter_map(kept_of))
    }

    /// Counts the frames of `range` that hold descriptors of their own section.
    pub(crate) fn kept_in(&self, range: PfnRange) -> u64 {
        let kept = self.words.parts(range).map(|part| part.blocks & kept(part.section));
        kept.map(|kept| u64::from(kept.count_ones()) * PAGEBLOCK_FRAMES as u64).sum()
    }

    /// Returns the frames with words, with the records of CPUs, with the record of reserved memory,
    /// and, if `bitmaps` is true, with frame bitmaps.
    pub(crate) fn metadata_where(&self, bitmaps: bool) -> impl Iterator<Item = Metadata> {
        let bitmaps = bitmaps.then(|| {
            let sections = self.words.sections().chain(self.words.retired_sections());
            sections.flat_map(|section| self.bitmaps_of(section))
        });
        let reserved = self.reserved.memory(self.direct_map());
        let reserved = reserved.map(|(frames, describes)| Metadata { frames, describes });
        self.words_of_sections().chain(bitmaps.into_iter().flatten()).chain(reserved)
    }

    #[cfg(not(loom))]
    fn words_of_sections(&self) -> impl Iterator<Item = Metadata> {
        let pieces = self.words.memory(self.direct_map());
        let pieces = pieces.map(|(frames, describes)| Metadata { frames, describes });
        pieces.chain(self.kept_for_words()).chain(self.records_of_cpus())
    }

    #[cfg(not(loom))]
    fn records_of_cpus(&self) -> Option<Metadata> {
        let frames = self.cpus.memory(self.direct_map())?;
        Some(Metadata { frames, describes: PfnRange::EMPTY })
    }

    #[cfg(loom)]
    fn words_of_sections(&self) -> impl Iterator<Item = Metadata> {
        core::iter::empty()
    }

    fn bitmaps_of<'s>(&'s self, section: SectionRef<'s>) -> impl Iterator<Item = Metadata> + 's {
        self.frames_of_bitmaps(section).filter_map(move |(frame, blocks, _)| {
            let describes = section.pageblocks(blocks.start, blocks.len());
            Some(Metadata { frames: PfnRange::with_len(frame, 1)?, describes })
        })
    }
}

/// Returns the pageblocks of a section that hold its own descriptors: always the lowest ones.
pub(crate) fn kept(section: SectionRef<'_>) -> u64 {
    let is_kept =
        |&bit: &usize| section.block(bit).is_some_and(|block| block.state().load().is_kept());
    mask((0..SECTION_PAGEBLOCKS).take_while(is_kept).count())
}

fn kept_of(section: SectionRef<'_>) -> Option<Metadata> {
    let pageblocks = u64::from(kept(section).count_ones());
    let frames = PfnRange::with_len(section.start(), pageblocks * PAGEBLOCK_FRAMES as u64)?;
    (pageblocks != 0).then_some(Metadata { frames, describes: section.range() })
}
