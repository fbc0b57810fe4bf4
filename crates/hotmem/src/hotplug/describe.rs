//! Memory that holds its own descriptors.
//!
//! Descriptors of 64 bytes for a section of 128 MiB fill a pageblock of 2 MiB. A section that comes
//! as a whole keeps its first pageblock for them, if the kernel likes; what comes in smaller parts
//! is described in free memory. The counter of a kept pageblock says so for as long as it is
//! present. It is online with the others, so that zones stay contiguous, but never free; and it
//! goes when nothing else of its section is present.

use super::Hotplug;
use crate::addr::{Pfn, PfnRange};
use crate::frames::FreeErrorKind;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS, bits_of};
use crate::hooks::{Hooks, Spare};
use crate::platform::Platform;
use crate::sync::Ordering;

impl<P: Platform> Hotplug<'_, P> {
    /// The kernel describes `range`, which is about to be RAM.
    pub(super) fn describe(&self, range: PfnRange, spare: &mut Spare, hooks: &mut impl Hooks) {
        for kept in kept_of(range, hooks) {
            self.set_kept(kept, true);
        }
        hooks.describe(range, spare);
    }

    /// `range` is no RAM any more.
    pub(super) fn undescribe(&self, range: PfnRange, hooks: &mut impl Hooks) {
        self.set_kept(range, false);
        self.take_back(hooks, |hooks, free| hooks.undescribe(range, free));
    }

    /// Frees what the kernel gives back in `give_back` of the frames that it had from a [`Spare`],
    /// and reports the first that is none of its own.
    pub(super) fn take_back<H: Hooks>(
        &self,
        hooks: &mut H,
        give_back: impl FnOnce(&mut H, &mut dyn FnMut(Pfn)),
    ) {
        let mut first_refused = None;
        give_back(hooks, &mut |frame| {
            if let Err(why) = self.take_back_one(frame) {
                first_refused.get_or_insert((frame, why));
            }
        });
        if let Some((frame, why)) = first_refused {
            hooks.frame_refused(frame, why);
        }
    }

    fn take_back_one(&self, frame: Pfn) -> Result<(), FreeErrorKind> {
        let range = PfnRange::with_len(frame, 1).ok_or(FreeErrorKind::Foreign)?;
        self.frames.free_filled(range).map_err(|error| error.kind)
    }

    /// A pageblock of `range` that holds descriptors of memory which stays when `leaving` goes.
    pub(super) fn keeps_for_others(&self, range: PfnRange, leaving: PfnRange) -> Option<PfnRange> {
        self.words(range).find_map(|(slot, index, blocks, section)| {
            let kept = blocks & self.frames.kept(slot, index);
            if kept == 0 {
                return None;
            }
            let leaving = self.frames.slots().get(slot)?.mask_of(index, leaving);
            // What is being added was promised its descriptors, too.
            let held = section.isolated.load(Ordering::Acquire);
            let stays = (section.present.load(Ordering::Acquire) | held) & !leaving != 0;
            stays.then(|| self.frames.first_block(slot, index, kept))
        })
    }

    /// A pageblock on its way out that holds descriptors for the sections of `range`: what came
    /// there now would lose its own.
    pub(super) fn leaves_with_descriptors(&self, range: PfnRange) -> Option<PfnRange> {
        self.words(range).find_map(|(slot, index, _, section)| {
            let held = section.isolated.load(Ordering::Acquire);
            let offline = !section.online.load(Ordering::Acquire);
            let leaving = self.frames.kept(slot, index) & held & offline;
            (leaving != 0).then(|| self.frames.first_block(slot, index, leaving))
        })
    }

    /// Has all of `range` kept from now on, or what is kept of it no more.
    fn set_kept(&self, range: PfnRange, kept: bool) {
        for (slot, index, blocks, _) in self.words(range) {
            let blocks = if kept { blocks } else { blocks & self.frames.kept(slot, index) };
            for bit in bits_of(blocks) {
                if let Some(block) = self.frames.block(slot, index, bit) {
                    block.counter.keep(kept);
                }
            }
        }
    }
}

/// What the kernel is going to keep of `range`.
pub(super) fn kept_of(range: PfnRange, hooks: &impl Hooks) -> impl Iterator<Item = PfnRange> {
    let whole = range.sections().filter(|section| section.frames() == SECTION_FRAMES as u64);
    whole.filter_map(|section| {
        let most = SECTION_PAGEBLOCKS as u64 - 1;
        let frames = hooks.keeps(section).min(most) * PAGEBLOCK_FRAMES as u64;
        PfnRange::with_len(section.start(), frames).filter(|kept| !kept.is_empty())
    })
}
