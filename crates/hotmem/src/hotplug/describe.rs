//! Lets a section hold its own descriptors.
//!
//! Descriptors of 64 bytes for each frame of a section of 128 MiB fill a pageblock of 2 MiB. If the
//! kernel chooses so, a section that is added as a whole keeps its first pageblock for them. The
//! descriptors of memory that is added in smaller parts lie in free memory. The block state of a
//! kept pageblock has a flag for as long as the pageblock is present. A kept pageblock is online
//! with the rest of its section, so that zones stay contiguous, but it is never free. It is removed
//! when nothing else of its section is present.

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
    /// Has the kernel describe `range`, which is about to be RAM.
    pub(super) fn describe(&mut self, range: PfnRange, spare: &mut PfnRange) {
        for kept in planned_descriptor_pageblocks(range, &self.mapping) {
            self.mark_descriptor_pageblocks(kept, true);
        }
        // SAFETY: the range is mapped, and not online yet; the frames were allocated for it.
        unsafe { self.mapping.describe(range, &mut || take_first(spare)) };
    }

    /// Has the kernel remove the descriptors of `range`, which is no RAM any more.
    pub(super) fn undescribe(&mut self, range: PfnRange) {
        self.mark_descriptor_pageblocks(range, false);
        // SAFETY: memory that was present was described when it was added, and the range is not
        // online.
        self.take_back(|mapping, free| unsafe { mapping.undescribe(range, free) });
    }

    /// Frees the frames that the kernel gives back in `give_back`, which it has taken for page
    /// tables and descriptors. Reports the first of them that cannot be freed to the kernel.
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

    /// Returns a pageblock of `range` that holds descriptors of memory that stays when `leaving` is
    /// removed.
    pub(super) fn holder_for_others(&self, range: PfnRange, leaving: PfnRange) -> Option<PfnRange> {
        self.parts(range).find_map(|Part { section, blocks }| {
            let kept = blocks & descriptor_pageblocks(section);
            if kept == 0 {
                return None;
            }
            let leaving = section.mask_of(leaving);
            // Memory that is being added needs its descriptors, too.
            let held = section.isolated.load(Ordering::Acquire);
            let stays = (section.present.load(Ordering::Acquire) | held) & !leaving != 0;
            stays.then(|| section.first_block(kept))
        })
    }

    /// Returns a pageblock that is being removed and that would hold descriptors for the sections
    /// of `range`. If memory was added there now, it would lose its descriptors.
    pub(super) fn holder_being_removed(&self, range: PfnRange) -> Option<PfnRange> {
        self.parts(range).find_map(|Part { section, .. }| {
            let held = section.isolated.load(Ordering::Acquire);
            let offline = !section.online.load(Ordering::Acquire);
            let leaving = descriptor_pageblocks(section) & held & offline;
            (leaving != 0).then(|| section.first_block(leaving))
        })
    }

    /// Sets or clears the flag of kept pageblocks: if `keeps`, sets it for all of `range`;
    /// otherwise clears it in the pageblocks of `range` that have it.
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
        let frames = mapping.keeps(section).min(most) * PAGEBLOCK_FRAMES as u64;
        PfnRange::with_len(section.start(), frames).filter(|kept| !kept.is_empty())
    })
}
