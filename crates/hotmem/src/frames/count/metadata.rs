//! Lists metadata: frames that hold words or frame bitmaps, and pageblocks that hold the kernel's
//! descriptors of their own section.

use crate::addr::PfnRange;
use crate::frames::divide::frames_of_bitmaps;
use crate::frames::{CallContext, Frames};
use crate::geometry::{SECTION_PAGEBLOCKS, frames_of_blocks, mask};
use crate::platform::Platform;
use crate::words::{DirectMap, SectionPart, SectionRef};

/// Frames that hold metadata, and the memory that the metadata describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The frames.
    pub frames: PfnRange,
    /// The memory that the metadata describes. Words describe several sections; frame bitmaps, and
    /// the kernel's descriptors, describe one section; the record of frames of boot memory that are
    /// no RAM describes all sections that have such frames. Empty for metadata of nodes, regions,
    /// CPUs or poisoned frames, and for frames in the word reserve and the table reserve.
    pub describes: PfnRange,
}

impl<P: Platform> Frames<P> {
    /// Returns all frames that hold the engine's own metadata, and all pageblocks that hold
    /// [descriptors of their own section](crate::Describe::pageblocks_needed). They are never
    /// free, reported or migrated. The result is a snapshot. Cost: O(sections).
    pub fn metadata(&self) -> impl Iterator<Item = Metadata> {
        let descriptors = self.words.sections().filter_map(descriptor_metadata);
        let call = self.call();
        let words = call.word_metadata().chain(call.record_of_not_ram());
        words.chain(call.bitmap_metadata()).chain(descriptors)
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Records that `frames` will hold metadata. The caller owns them, and calls this before
    /// [`metadata`](Frames::metadata) lists them: see
    /// [`may_hold_metadata`](crate::words::Section::may_hold_metadata).
    pub(crate) fn note_metadata(&self, frames: PfnRange) {
        for SectionPart { section, blocks } in self.words().section_parts(frames) {
            section.note_metadata(blocks);
        }
    }

    /// Counts the frames that hold words or records of CPUs, or are in the word reserve or the table
    /// reserve. Cost: O(sections with words).
    pub(super) fn count_words(&self) -> u64 {
        let mut frames = 0;
        self.visit_word_metadata(&mut |metadata| frames += metadata.frames.frames());
        frames
    }

    /// Calls `visit` with all metadata that holds words or records of CPUs, or is in a reserve. A
    /// loop takes less code than a long iterator.
    fn visit_word_metadata(&self, visit: &mut dyn FnMut(Metadata)) {
        self.word_metadata().for_each(visit);
    }

    /// Counts the frames of `range` that hold descriptors of their own section.
    pub(crate) fn descriptor_frames_in(&self, range: PfnRange) -> u64 {
        let descriptor_blocks =
            |part: SectionPart<'_>| part.blocks & descriptor_pageblocks(part.section);
        self.words().section_parts(range).map(descriptor_blocks).map(frames_of_blocks).sum()
    }

    /// Calls `visit` with the engine's own metadata, except frame bitmaps: words, the records of
    /// CPUs, and the record of boot memory that is no RAM.
    pub(crate) fn visit_metadata_except_bitmaps(&self, visit: &mut dyn FnMut(Metadata)) {
        self.visit_word_metadata(visit);
        self.record_of_not_ram().into_iter().for_each(visit);
    }

    /// Returns the frames that hold the record of boot memory that is no RAM.
    fn record_of_not_ram(&self) -> Option<Metadata> {
        let (frames, describes) = self.frames.not_ram.memory(self.frames.direct_map())?;
        Some(Metadata { frames, describes })
    }

    /// Returns the frames that hold frame bitmaps.
    fn bitmap_metadata(&self) -> impl Iterator<Item = Metadata> + use<'f, P> {
        let direct_map = self.frames.direct_map();
        self.words().sections().flat_map(move |section| bitmaps_of(section, direct_map))
    }

    #[cfg(not(loom))]
    fn word_metadata(&self) -> impl Iterator<Item = Metadata> + use<'f, P> {
        let pieces = self.words().frames_of_pieces(self.frames.direct_map());
        let pieces = pieces.map(|(frames, describes)| Metadata { frames, describes });
        let reserves = self.reserve_metadata().chain(self.table_reserve_metadata());
        pieces.chain(reserves).chain(self.records_of_cpus()).chain(self.poison_pages())
    }

    #[cfg(not(loom))]
    fn records_of_cpus(&self) -> Option<Metadata> {
        let frames = self.frames.cpus.memory(self.frames.direct_map())?;
        Some(Metadata { frames, describes: PfnRange::EMPTY })
    }

    #[cfg(loom)]
    fn word_metadata(&self) -> impl Iterator<Item = Metadata> + use<'f, P> {
        core::iter::empty()
    }
}

/// Returns the frames that hold the bitmaps of a section.
pub(crate) fn bitmaps_of(
    section: SectionRef<'_>,
    direct_map: DirectMap,
) -> impl Iterator<Item = Metadata> {
    frames_of_bitmaps(section, direct_map).filter_map(move |(frame, blocks, _)| {
        let describes = section.pageblocks(blocks.start, blocks.len());
        Some(Metadata { frames: PfnRange::with_len(frame, 1)?, describes })
    })
}

/// Returns the pageblocks of a section that hold the section's own descriptors. They are always the
/// lowest ones.
#[inline(never)]
pub(crate) fn descriptor_pageblocks(section: SectionRef<'_>) -> u64 {
    let holds_descriptors = |&bit: &usize| {
        section.block(bit).is_some_and(|block| block.state().load().holds_descriptors())
    };
    mask((0..SECTION_PAGEBLOCKS).take_while(holds_descriptors).count())
}

fn descriptor_metadata(section: SectionRef<'_>) -> Option<Metadata> {
    let frames = frames_of_blocks(descriptor_pageblocks(section));
    let frames = PfnRange::with_len(section.start(), frames)?;
    (!frames.is_empty()).then_some(Metadata { frames, describes: section.range() })
}
