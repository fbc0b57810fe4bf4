//! Allocates and frees one whole pageblock: the fast paths.
//!
//! The two fast paths make no function calls except tail calls, so that they need not save
//! registers. If it is not enough to change one bit beside other bits, they call the general
//! functions in `whole/`, `free/` and `cpu/hints.rs`.

use super::frame_or_none::FrameOrNone;
use super::free_frame::FreeOutcome;
use crate::addr::Pfn;
use crate::frames::Frames;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant, sequential};
use crate::words::{BeforePublish, Section, Zone};
use core::num::NonZero;

impl<P: Platform> Frames<P> {
    /// Allocates one whole pageblock from this CPU's section by one read-modify-write. It hides no
    /// memory. While there is a reporter, it takes no reported pageblock, because another section
    /// may have an unreported one. Also returns whether the pageblock is zero.
    #[inline(always)]
    pub(in crate::frames) fn alloc_pageblock(&self, zone: Zone) -> Option<(Pfn, bool)> {
        match zone {
            Zone::Kernel => self.alloc_pageblock_in::<{ Zone::Kernel as u8 }>().get_with_mark(),
            Zone::Movable => self.alloc_pageblock_in::<{ Zone::Movable as u8 }>().get_with_mark(),
        }
    }

    #[inline(never)]
    fn alloc_pageblock_in<const ZONE: u8>(&self) -> FrameOrNone {
        let zone = Zone::ALL[usize::from(ZONE)];
        // Acquire pairs with the swap that set the hint.
        let hint = self.cpu_inlined().section(zone).load(Ordering::Acquire);
        let Some(section) = self.words.hinted_section_inlined(hint) else {
            return FrameOrNone::NONE;
        };
        // Relaxed: the claim is an Acquire.
        let free_bits = section.free.load(Ordering::Relaxed);
        let free = free_bits & section.zone_mask(zone);
        if free == 0 {
            return FrameOrNone::NONE;
        }
        let unreported = NonZero::new(free & !section.reported.load(Ordering::Relaxed));
        let first = unreported.and_then(|blocks| section.block(blocks.trailing_zeros() as usize));
        let Some(block) = first else { return self.alloc_pageblock_slowly(zone) };
        let Some(has_marks) = section.claim_once(free_bits, block.mask()) else {
            return self.alloc_pageblock_slowly(zone);
        };
        // As in `suits_or_put_back`: the pageblock may have changed its zone before it was claimed.
        if !is_in_zone(&section, block.mask(), zone) {
            return self.refuse_pageblock(block.start_inlined(), zone);
        }
        if has_marks {
            return self.hand_out_pageblock(block.start_inlined(), zone);
        }
        let state = block.state().load();
        // Nothing to write: the pageblock was allocated as a whole before, too.
        if state.is_unflagged_whole() {
            return FrameOrNone::number(block.start_inlined().number());
        }
        // Read by the owner, because an earlier owner may have installed bitmaps that record free
        // frames. Bitmaps that are installed from now on record none.
        if !state.is_unused() || !section.bitmaps.is_missing(block.bit()) {
            return self.hand_out_pageblock(block.start_inlined(), zone);
        }
        block.state().set_whole();
        FrameOrNone::number(block.start_inlined().number())
    }

    /// Allocates a pageblock in the general way: there are only reported ones, or another CPU was
    /// faster.
    #[inline(never)]
    fn alloc_pageblock_slowly(&self, zone: Zone) -> FrameOrNone {
        let call = self.call();
        let section = call.this_cpus_section(zone);
        let claimed =
            section.and_then(|section| call.claim_lowest(section, zone, || !self.wakeup().is_on()));
        let Some((block, zeroed)) = claimed else { return FrameOrNone::NONE };
        call.hand_out(block);
        allocated(block.start(), zeroed.has_all(block.mask()))
    }

    /// Marks a pageblock as allocated that has a bitmap, a flag or a mark. The caller must have claimed
    /// it. If the pageblock is isolated or has poison, allocates another one.
    #[inline(never)]
    fn hand_out_pageblock(&self, start: Pfn, zone: Zone) -> FrameOrNone {
        let Some(block) = self.words.block_of(start).or_record_violation() else {
            return FrameOrNone::NONE;
        };
        let call = self.call();
        let is_zero = block.section().take_marks(block.mask()).has_all(block.mask());
        if call.take_back_stale(block.section(), block.mask()) == 0 {
            return self.alloc_pageblock_slowly(zone);
        }
        call.hand_out(block);
        allocated(start, is_zero)
    }

    /// Publishes a pageblock again that the caller has claimed and that is in another zone, and
    /// allocates another one.
    #[cold]
    fn refuse_pageblock(&self, start: Pfn, zone: Zone) -> FrameOrNone {
        if let Some(block) = self.words.block_of(start).or_record_violation() {
            let call = self.call();
            let _ = block.section().take_marks(block.mask());
            let owned = call.take_back_stale(block.section(), block.mask());
            if owned != 0 {
                call.publish_blocks(block.section(), owned);
            }
        }
        self.alloc_pageblock_slowly(zone)
    }

    /// Frees the whole pageblock that begins at `start`, if it was allocated as a whole and its
    /// block state has no flag: one read-modify-write publishes it. The block state stays
    /// unchanged: see `frames/whole/stale.rs`.
    #[inline(never)]
    pub(in crate::frames) fn free_block(&self, start: Pfn) -> FreeOutcome {
        let Some((section, bit)) = self.words.section_words_at(start) else {
            return FreeOutcome::NotFreed;
        };
        if !section.state(bit).load().is_unflagged_whole() {
            return FreeOutcome::NotFreed;
        }
        match section.try_publish_beside_free(1 << bit) {
            Some(BeforePublish { movable, .. }) if self.is_complete(section, bit, movable) => {
                FreeOutcome::Freed
            }
            Some(BeforePublish { free, .. }) => self.finish_publish(start, free),
            None => self.publish_pageblock(start),
        }
    }

    /// Returns whether nothing is left to do after a pageblock was published beside free ones.
    /// `movable` is the value of `movable` before the publish.
    #[inline(always)]
    fn is_complete(&self, section: &Section, bit: usize, movable: u64) -> bool {
        mutant!("a publisher does not read the zones after it has published" => return true);
        // The zones are read again after the publish: see `set_zone`.
        section.movable.load(Ordering::Relaxed) == movable
            && !self.wakeup().is_on()
            && is_unflagged(section, bit)
    }

    /// Publishes a pageblock that was allocated as a whole, in the general way.
    #[inline(never)]
    fn publish_pageblock(&self, start: Pfn) -> FreeOutcome {
        let Some(block) = self.words.block_of(start).or_record_violation() else {
            return FreeOutcome::Freed;
        };
        if block.is_free() {
            return FreeOutcome::NotFreed;
        }
        let call = self.call();
        call.publish_blocks(block.section(), block.mask());
        call.complete_publish(block);
        FreeOutcome::Freed
    }

    /// Completes a publish. `before` is the value of `free` before the publish.
    #[inline(never)]
    fn finish_publish(&self, start: Pfn, before: u64) -> FreeOutcome {
        if let Some(block) = self.words.block_of(start).or_record_violation() {
            let call = self.call();
            call.make_published_findable(block.section(), block.mask(), before);
            call.complete_publish(block);
        }
        FreeOutcome::Freed
    }
}

/// Returns the result of the allocation of a pageblock.
fn allocated(start: Pfn, is_zero: bool) -> FrameOrNone {
    let frame = FrameOrNone::number(start.number());
    if is_zero { frame.marked_zero() } else { frame }
}

/// Returns whether the block state of a pageblock that was just published has no flag.
#[inline(always)]
fn is_unflagged(section: &Section, bit: usize) -> bool {
    mutant!("a free does not look at the block state again" => return true);
    sequential();
    section.state(bit).load().is_unflagged_whole()
}

/// Returns whether a claimed pageblock is in a zone.
#[inline(always)]
fn is_in_zone(section: &Section, block: u64, zone: Zone) -> bool {
    mutant!("a claim does not look at the zone again" => return true);
    section.zone_mask(zone) & block != 0
}
