//! Has the kernel write and remove descriptors, and marks the pageblocks that hold the descriptors
//! of their own section.
//!
//! Descriptors of 64 bytes for each frame of a section of 128 MiB fill a pageblock of 2 MiB. If the
//! kernel chooses so, the descriptors of a section that is added as a whole lie in its first
//! pageblock, which is then a *descriptor pageblock*. The descriptors of memory that is added in
//! smaller parts are allocated from free memory. A flag in the block state marks a descriptor
//! pageblock while it is present. It comes online with the rest of its section, so that zones stay
//! contiguous, but it is never free. It can be removed only with the last other memory of its
//! section, or after it.

use super::Hotplug;
use super::spare_frames::SpareFrames;
use crate::addr::{Pfn, PfnRange};
use crate::frames::descriptor_pageblocks;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS};
use crate::mapping::Map;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::words::SectionPart;

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Has the kernel write the descriptors of `range`, which is about to be RAM. Takes frames for
    /// them from `spare`.
    pub(super) fn describe(&mut self, range: PfnRange, spare: &mut SpareFrames<'_, P>) {
        for section in range.chunks(SECTION_FRAMES as u64) {
            if let Some(descriptor_blocks) = self.planned_descriptor_pageblocks(section) {
                self.mark_descriptor_pageblocks(descriptor_blocks, true);
            }
        }
        if let Some(descriptors) = self.mapping.descriptors() {
            // SAFETY: `range` is mapped and not online yet; the frames of `spare` were allocated
            // for its descriptors.
            unsafe { descriptors.describe(range, &mut || spare.take()) };
        }
    }

    /// Returns the maximum number of frames that the descriptors of `range` need.
    pub(super) fn descriptor_frames_needed(&mut self, range: PfnRange) -> u64 {
        self.mapping.descriptors().map_or(0, |descriptors| descriptors.frames_needed(range))
    }

    /// Checks that the kernel will write the descriptors of `range` to no poisoned frame.
    pub(super) fn check_descriptor_places(&mut self, range: PfnRange) -> Result<(), RangeError> {
        let poisoned = range.chunks(SECTION_FRAMES as u64).find_map(|section| {
            let descriptor_blocks = self.planned_descriptor_pageblocks(section)?;
            self.poison_in(descriptor_blocks)
        });
        poisoned.map_or(Ok(()), |frame| Err(RangeErrorKind::Poisoned.at(frame)))
    }

    /// Returns the pageblocks of `section_range` in which the kernel will write descriptors: `None`
    /// unless it is a whole section.
    fn planned_descriptor_pageblocks(&mut self, section_range: PfnRange) -> Option<PfnRange> {
        if section_range.frames() != SECTION_FRAMES as u64 {
            return None;
        }
        let most = SECTION_PAGEBLOCKS as u64 - 1;
        let pageblocks = self.mapping.descriptors()?.pageblocks_needed(section_range).min(most);
        let frames = pageblocks * PAGEBLOCK_FRAMES as u64;
        PfnRange::with_len(section_range.start(), frames).filter(|blocks| !blocks.is_empty())
    }

    /// Calls the kernel to remove the descriptors of `range`, which is no longer RAM.
    pub(super) fn undescribe(&mut self, range: PfnRange) {
        self.mark_descriptor_pageblocks(range, false);
        self.take_back(|mapping, free| {
            if let Some(descriptors) = mapping.descriptors() {
                // SAFETY: `range` was present, so it was described when it was added; and it is not
                // online.
                unsafe { descriptors.undescribe(range, free) };
            }
        });
    }

    /// Frees the frames that `give_back` passes to its argument: frames that the kernel took for
    /// page tables and descriptors.
    pub(super) fn take_back(
        &mut self,
        give_back: impl FnOnce(&mut M, &mut dyn FnMut(Pfn) -> Result<(), RangeError>),
    ) {
        let frames = self.frames;
        give_back(&mut self.mapping, &mut |frame| {
            let range =
                PfnRange::with_len(frame, 1).ok_or(RangeErrorKind::Foreign.at(PfnRange::EMPTY))?;
            frames.call().take_back_table(range)
        });
    }

    /// Returns a pageblock of `range` that holds descriptors of memory outside `removed`, which is
    /// to be removed. The other memory will still need its descriptors.
    pub(super) fn descriptors_of_others(
        &self,
        range: PfnRange,
        removed: PfnRange,
    ) -> Option<PfnRange> {
        self.section_parts(range).find_map(|SectionPart { section, blocks }| {
            let descriptor_blocks = blocks & descriptor_pageblocks(section);
            if descriptor_blocks == 0 {
                return None;
            }
            let removed = section.mask_of(removed);
            // Memory that is being added is held, and needs its descriptors too.
            let held = section.isolated.load(Ordering::Acquire);
            let must_stay = (section.present.load(Ordering::Acquire) | held) & !removed != 0;
            must_stay.then(|| section.first_block(descriptor_blocks))
        })
    }

    /// Returns a pageblock that is being removed and that holds the descriptors of a section of
    /// `range`. If memory was added to that section now, it would lose its descriptors.
    pub(super) fn descriptors_being_removed(&self, range: PfnRange) -> Option<PfnRange> {
        self.section_parts(range).find_map(|SectionPart { section, .. }| {
            let held = section.isolated.load(Ordering::Acquire);
            let offline = !section.online.load(Ordering::Acquire);
            let leaving_blocks = descriptor_pageblocks(section) & held & offline;
            (leaving_blocks != 0).then(|| section.first_block(leaving_blocks))
        })
    }

    /// Sets or clears the flag of descriptor pageblocks. If `holds` is true, sets the flag of all
    /// pageblocks of `range`; otherwise, clears the flags that are set.
    fn mark_descriptor_pageblocks(&self, range: PfnRange, holds: bool) {
        for SectionPart { section, blocks } in self.section_parts(range) {
            let blocks = if holds { blocks } else { blocks & descriptor_pageblocks(section) };
            section.blocks(blocks).for_each(|block| block.state().set_holds_descriptors(holds));
        }
    }
}
