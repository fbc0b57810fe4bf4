//! Allocates and frees one whole pageblock: the fast paths.
//!
//! The two fast paths make no function calls except tail calls, so that they need not save
//! registers. If it is not enough to change one bit beside other bits, they call `blocks.rs`,
//! `free.rs` and `hints.rs`.

use super::Frames;
use super::found_frame::FoundFrame;
use super::free_frame::Freed;
use crate::addr::Pfn;
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Beside, Section, Zone};
use core::num::NonZero;

impl<P: Platform> Frames<P> {
    /// Allocates one whole pageblock from this CPU's section by one read-modify-write. It hides no
    /// memory. While there is a reporter, it takes no reported pageblock, because another section
    /// may have an unreported one.
    #[inline(always)]
    pub(super) fn alloc_pageblock(&self, zone: Zone) -> Option<Pfn> {
        match zone {
            Zone::Kernel => self.alloc_pageblock_in::<{ Zone::Kernel as u8 }>().get(),
            Zone::Movable => self.alloc_pageblock_in::<{ Zone::Movable as u8 }>().get(),
        }
    }

    #[inline(never)]
    fn alloc_pageblock_in<const ZONE: u8>(&self) -> FoundFrame {
        let zone = Zone::ALL[usize::from(ZONE)];
        // Acquire pairs with the swap that set the hint.
        let hint = self.cpu_inlined().section(zone).load(Ordering::Acquire);
        let Some(section) = self.words.hinted_section(hint) else { return FoundFrame::NONE };
        // Relaxed: the claim is an Acquire.
        let seen = section.free.load(Ordering::Relaxed);
        let free = seen & section.zone_mask(zone);
        if free == 0 {
            return FoundFrame::NONE;
        }
        let unreported = NonZero::new(free & !section.reported.load(Ordering::Relaxed));
        let first = unreported.and_then(|blocks| section.block(blocks.trailing_zeros() as usize));
        let Some(block) = first else { return self.alloc_pageblock_slowly(zone) };
        if !section.claim_once(seen, block.mask()) {
            return self.alloc_pageblock_slowly(zone);
        }
        // As in `is_for`: the pageblock may have changed its zone before it was claimed.
        if !is_in(&section, block.mask(), zone) {
            return self.refuse_pageblock(block.start(), zone);
        }
        // Read by the owner, because an earlier owner may have installed bitmaps that record free
        // frames. Bitmaps that are installed from now on record none.
        if !section.bitmaps.is_missing(block.bit()) {
            return self.hand_out_pageblock(block.start());
        }
        block.state().set_whole();
        FoundFrame::number(block.start().number())
    }

    /// Allocates a pageblock in the general way: there are only reported ones, or another CPU was
    /// faster.
    #[inline(never)]
    fn alloc_pageblock_slowly(&self, zone: Zone) -> FoundFrame {
        let section = self.own_section(zone);
        let claimed =
            section.and_then(|section| self.claim_lowest(section, zone, || !self.wakeup().is_on()));
        let Some(block) = claimed else { return FoundFrame::NONE };
        self.hand_out(&block);
        FoundFrame::number(block.start().number())
    }

    /// Marks a pageblock with a bitmap as allocated. The caller has claimed it.
    #[inline(never)]
    fn hand_out_pageblock(&self, start: Pfn) -> FoundFrame {
        let Some(block) = self.words.block_of(start).known() else { return FoundFrame::NONE };
        self.hand_out(&block);
        FoundFrame::number(start.number())
    }

    /// Publishes a pageblock again that the caller has claimed and that is in another zone, and
    /// allocates another one.
    #[cold]
    fn refuse_pageblock(&self, start: Pfn, zone: Zone) -> FoundFrame {
        if let Some(block) = self.words.block_of(start).known() {
            self.show_free(block.section, block.mask(), &mut self.new_moves());
        }
        self.alloc_pageblock_slowly(zone)
    }

    /// Frees the whole pageblock that begins at `start`, if it was allocated as a whole and its
    /// block state has no flag: one read-modify-write takes it back, and another publishes it.
    #[inline(never)]
    pub(super) fn free_block(&self, start: Pfn) -> Freed {
        let Some((section, bit)) = self.words.words_at(start) else { return Freed::No };
        if !section.state(bit).take_back_unflagged() {
            return Freed::No;
        }
        match section.publish_beside(1 << bit) {
            Some(Beside { movable, .. }) if self.is_all_shown(section, movable) => Freed::Yes,
            Some(Beside { before, .. }) => self.show_pageblock(start, before),
            None => self.publish_pageblock(start),
        }
    }

    /// Returns whether a publish beside free pageblocks is complete. `movable` is the value of
    /// `movable` before the publish.
    #[inline(always)]
    fn is_all_shown(&self, section: &Section, movable: u64) -> bool {
        mutant!("a publisher does not read the zones after it has published" => return true);
        // The zones are read again after the publish: see `set_zone`.
        section.movable.load(Ordering::Relaxed) == movable && !self.wakeup().is_on()
    }

    /// Publishes a pageblock that the caller has taken back, in the general way.
    #[inline(never)]
    fn publish_pageblock(&self, start: Pfn) -> Freed {
        if let Some(block) = self.words.block_of(start).known() {
            self.show_free(block.section, block.mask(), &mut self.new_moves());
        }
        Freed::Yes
    }

    /// Completes a publish. `before` is the value of `free` before the publish.
    #[inline(never)]
    fn show_pageblock(&self, start: Pfn, before: u64) -> Freed {
        // The pageblock is free, so it may go offline and its words may be retired.
        if let Some(block) = self.words.block_of(start) {
            self.show_published(block.section, block.mask(), before, &mut self.new_moves());
        }
        Freed::Yes
    }
}

/// Returns whether a claimed pageblock is in a zone.
#[inline(always)]
fn is_in(section: &Section, block: u64, zone: Zone) -> bool {
    mutant!("a claim does not look at the zone again" => return true);
    section.zone_mask(zone) & block != 0
}
