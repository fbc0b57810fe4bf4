//! Has the kernel write and remove descriptors, and marks the pageblocks that hold the descriptors
//! of their own section.
//!
//! Descriptors of 64 bytes for each frame of a section of 128 MiB fill a pageblock of 2 MiB. If the
//! kernel chooses so, a section that is added as a whole *keeps* its first pageblock for them. The
//! descriptors of memory that is added in smaller parts are allocated from free memory. A flag in
//! the block state marks a kept pageblock while it is present. A kept pageblock comes online with
//! the rest of its section, so that zones stay contiguous, but it is never free. It can be removed
//! only with the last other memory of its section, or after it.

use super::Hotplug;
use super::add::take_first;
use crate::addr::{Pfn, PfnRange};
use crate::frames::descriptor_pageblocks;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS};
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::range_error::RangeErrorKind;
use crate::sync::Ordering;
use crate::words::Part;

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Has the kernel write the descriptors of `range`, which is about to be RAM. Takes frames for
    /// them from `spare`.
    pub(super) fn describe(&mut self, range: PfnRange, spare: &mut PfnRange) {
        for kept in planned_descriptor_pageblocks(range, &self.mapping) {
            self.mark_descriptor_pageblocks(kept, true);
        }
        // SAFETY: `range` is mapped and not online yet; the frames of `spare` were allocated for
        // its descriptors.
        unsafe { self.mapping.describe(range, &mut || take_first(spare)) };
    }

    /// Calls the kernel to remove the descriptors of `range`, which is no longer RAM.
    pub(super) fn undescribe(&mut self, range: PfnRange) {
        self.mark_descriptor_pageblocks(range, false);
        // SAFETY: `range` was present, so it was described when it was added; and it is not online.
        self.take_back(|mapping, free| unsafe { mapping.undescribe(range, free) });
    }

    /// Frees the frames that `give_back` passes to its argument: frames that the kernel took for
    /// page tables and descriptors. If some cannot be freed, reports the first of them to the
    /// kernel.
    pub(super) fn take_back(&mut self, give_back: impl FnOnce(&mut M, &mut dyn FnMut(Pfn))) {
        let frames = self.frames;
        let take_back = |frame| {
            let range = PfnRange::with_len(frame, 1).ok_or(RangeErrorKind::Foreign)?;
            frames.free_filled(range).map_err(|error| error.kind)
        };
        let mut first_refused = None;
        give_back(&mut self.mapping, &mut |frame| {
            if let Err(why) = take_back(frame) {
                first_refused.get_or_insert((frame, why));
            }
        });
        if let Some((frame, why)) = first_refused {
            self.mapping.frame_refused(frame, why);
        }
    }

    /// Returns a pageblock of `range` that holds descriptors of memory outside `leaving`. That
    /// memory stays if `leaving` is removed.
    pub(super) fn descriptors_of_others(
        &self,
        range: PfnRange,
        leaving: PfnRange,
    ) -> Option<PfnRange> {
        self.parts(range).find_map(|Part { section, blocks }| {
            let kept = blocks & descriptor_pageblocks(section);
            if kept == 0 {
                return None;
            }
            let leaving = section.mask_of(leaving);
            // Memory that is being added is held, and needs its descriptors too.
            let held = section.isolated.load(Ordering::Acquire);
            let stays = (section.present.load(Ordering::Acquire) | held) & !leaving != 0;
            stays.then(|| section.first_block(kept))
        })
    }

    /// Returns a pageblock that is being removed and that holds the descriptors of a section of
    /// `range`. If memory was added to that section now, it would lose its descriptors.
    pub(super) fn descriptors_being_removed(&self, range: PfnRange) -> Option<PfnRange> {
        self.parts(range).find_map(|Part { section, .. }| {
            let held = section.isolated.load(Ordering::Acquire);
            let offline = !section.online.load(Ordering::Acquire);
            let leaving = descriptor_pageblocks(section) & held & offline;
            (leaving != 0).then(|| section.first_block(leaving))
        })
    }

    /// Sets or clears the flag of kept pageblocks. If `keeps` is true, sets the flag of all
    /// pageblocks of `range`; otherwise, clears the flags that are set.
    fn mark_descriptor_pageblocks(&self, range: PfnRange, keeps: bool) {
        for Part { section, blocks } in self.parts(range) {
            let blocks = if keeps { blocks } else { blocks & descriptor_pageblocks(section) };
            section.blocks(blocks).for_each(|block| block.state().set_holds_descriptors(keeps));
        }
    }
}

/// Returns the pageblocks of `range` that the kernel will keep for descriptors.
pub(super) fn planned_descriptor_pageblocks(
    range: PfnRange,
    mapping: &impl Mapping,
) -> impl Iterator<Item = PfnRange> {
    let whole = range.sections().filter(|section| section.frames() == SECTION_FRAMES as u64);
    whole.filter_map(|section| {
        let most = SECTION_PAGEBLOCKS as u64 - 1;
        let frames = mapping.descriptor_pageblocks(section).min(most) * PAGEBLOCK_FRAMES as u64;
        PfnRange::with_len(section.start(), frames).filter(|kept| !kept.is_empty())
    })
}
