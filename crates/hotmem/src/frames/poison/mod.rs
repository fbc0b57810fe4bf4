//! Quarantines poisoned frames, which the hardware reports as faulty.
//!
//! A *quarantined* frame is neither free nor in use: its bit in the bitmap stays clear, so that it
//! is never allocated again. A poisoned frame that is free is quarantined at once; one in use is
//! quarantined when it is freed. A table lists the poisoned frames. The block state of a
//! pageblock with poisoned frames has the *poison mark*. As long as a marked pageblock is live, it
//! never becomes wholly free, and each free in it reads the table. A free in any other pageblock
//! costs no more than without poison.
//!
//! Only the control path poisons and heals. It writes the table, marks the block state, and then
//! sets a flag in the word of the bitmap that has the frame's bit, by a read-modify-write that
//! reads that bit as well. A free sets the bit by another read-modify-write of the same word, which
//! reads the flag. So either the control path finds the frame free and quarantines it, or the free
//! finds the flag and reads the table.
//!
//! If an isolation token owns a pageblock, its bitmap is not in use, so no bit in it can be
//! cleared. Instead, the release of the token reads the table, and divides the pageblock so that
//! only its other frames become free. Putting memory online does the same.

#[cfg(not(loom))]
mod pages;
mod table;

pub(super) use table::PoisonTable;
pub use table::Poisoned;

use super::Frames;
#[cfg(not(loom))]
use super::Metadata;
use super::call::CallContext;
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::invariant::OrRecordViolation;
use crate::outlined::Outlined;
use crate::platform::Platform;
use crate::range_error::RangeErrorKind;
use crate::sync::{Ordering, fence, mutant, sequential, spin_hint};
use crate::words::{Block, FrameBitmap, SectionRef};
use table::NONE;

/// The number of attempts to poison a frame whose pageblock is being allocated or freed. After
/// that, the call fails as "busy".
const ATTEMPTS: usize = if cfg!(loom) { 2 } else { 1000 };

impl<P> Frames<P> {
    /// Returns all poisoned frames, in no order, and says of each whether it is in use. A snapshot.
    /// Context: any.
    pub fn poisoned(&self) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.poison.frames()
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Returns the poisoned frames of `range`.
    #[inline(never)]
    pub(crate) fn poisoned_in(
        &self,
        range: PfnRange,
    ) -> impl Iterator<Item = (Pfn, Poisoned)> + use<'f, P> {
        Outlined(self.frames.poisoned().filter(move |&(frame, _)| range.contains(frame)))
    }

    /// Returns the quarantined frames of `range`.
    pub(crate) fn quarantined_in(&self, range: PfnRange) -> impl Iterator<Item = Pfn> + use<'f, P> {
        let quarantined =
            self.poisoned_in(range).filter(|&(_, state)| state == Poisoned::Quarantined);
        quarantined.map(|(frame, _)| frame)
    }

    /// Returns the lowest poisoned frame of `range` that is in use.
    pub(crate) fn poisoned_in_use(&self, range: PfnRange) -> Option<PfnRange> {
        let in_use = self.poisoned_in(range).filter(|&(_, state)| state == Poisoned::InUse);
        PfnRange::with_len(in_use.map(|(frame, _)| frame).min()?, 1)
    }

    /// Forgets the poisoned frames of `range`, which was removed: memory that is added in its place
    /// later is different memory. Control path only.
    pub(crate) fn forget_poison(&self, range: PfnRange) {
        self.frames.poison.remove(range);
    }

    /// Quarantines a frame if it is free. Returns whether the frame cannot be allocated any more:
    /// this call has quarantined it, or a token owns its pageblock.
    fn quarantine_if_free(&self, block: Block<'_>, frame: Pfn) -> bool {
        let (word, bit) = word_and_bit(block.offset_of(frame));
        if self.take_frame(block, block.offset_of(frame)) {
            block.state().poison();
            if let Some(bitmap) = self.bitmap_of(block).or_record_violation() {
                bitmap.poison(word);
            }
            return true;
        }
        if block.state().poison().is_none() {
            // Pairs with the fence in `divide_around_poison`.
            fence(Ordering::SeqCst);
            return block.section().isolated.load(Ordering::Acquire) & block.mask() != 0;
        }
        // If the pageblock has no bitmap, it is allocated as a whole, and the first free of a part
        // of it will find the poison mark.
        let Some(bitmap) = self.bitmap_of(block) else { return false };
        bitmap.poison(word);
        bitmap.take_flagged(word, bit)
    }

    /// Returns whether the frame is certainly allocated. Its pageblock has the poison mark.
    fn is_in_use(&self, block: Block<'_>, frame: Pfn) -> bool {
        let Some(before) = block.state().poison() else { return false };
        sequential();
        mutant!("poison does not look whether the pageblock is free" => return true);
        // The pageblock was freed meanwhile, and the free has not seen the poison mark: see
        // `frames/whole/stale.rs`.
        if before.is_whole() && block.is_free() {
            return false;
        }
        let (word, bit) = word_and_bit(block.offset_of(frame));
        // The bit is final unless the words are held because the pageblock is being divided or
        // taken. The words of a pageblock that was allocated as a whole are held, too, but its bits
        // are final.
        let is_bit_final = |bitmap: &FrameBitmap| {
            before.is_whole() || before.is_partly_freed() || !bitmap.is_held()
        };
        self.bitmap_of(block)
            .is_none_or(|bitmap| bitmap.poison(word) & bit == 0 && is_bit_final(bitmap))
    }

    /// Clears the poison mark of a pageblock if none of its frames is poisoned any more.
    fn heal(&self, block: Block<'_>) {
        if self.poisoned_in(block.range()).next().is_some() {
            return;
        }
        let bitmap = self.bitmap_of(block);
        if let Some(bitmap) = bitmap {
            bitmap.heal();
        }
        block.state().heal();
        // Look whether all frames are free: they may have become free while the poison mark kept
        // the pageblock divided.
        if let Some(bitmap) = bitmap {
            self.publish_or_make_findable(block, bitmap);
        }
    }

    /// Sets the flag of poison in those words of the bitmap that have poisoned frames. The
    /// pageblock has the poison mark.
    pub(super) fn flag_poison(&self, block: Block<'_>, bitmap: &FrameBitmap) {
        for (frame, _) in self.poisoned_in(block.range()) {
            bitmap.poison(word_and_bit(block.offset_of(frame)).0);
        }
    }

    /// Quarantines the poisoned frames of `bits`. The caller must have just set these bits, in a
    /// word with the flag of poison.
    pub(super) fn quarantine_freed(
        &self,
        block: Block<'_>,
        bitmap: &FrameBitmap,
        word: usize,
        bits: u64,
    ) {
        for (frame, _) in self.poisoned_in(block.range()) {
            let (word_of_frame, bit) = word_and_bit(block.offset_of(frame));
            // If another CPU has allocated the frame since its bit was set, the next free
            // quarantines it.
            if word_of_frame == word && bits & bit != 0 && bitmap.take_flagged(word, bit) {
                self.frames.poison.quarantine(frame);
            }
        }
    }

    /// Divides each pageblock of `owned` that has poisoned frames, so that only its other frames
    /// become free. Returns the pageblocks of `owned` without poisoned frames. The caller owns all
    /// of `owned`, and has cleared their `isolated` bits.
    pub(crate) fn divide_around_poison(&self, section: SectionRef<'_>, owned: u64) -> u64 {
        // Pairs with the fence in `quarantine_if_free`: either the poisoning call sees that the
        // pageblocks are no longer isolated, or this function sees the poison.
        fence(Ordering::SeqCst);
        let mut without_poison = owned;
        for (frame, _) in self.frames.poisoned() {
            if let Some(block) = self.words().block_of(frame)
                && block.section() == section
                && without_poison & block.mask() != 0
            {
                without_poison &= !block.mask();
                self.divide_around(block);
            }
        }
        without_poison
    }

    fn divide_around(&self, block: Block<'_>) {
        let poisoned = || self.poisoned_in(block.range()).map(|(frame, _)| frame);
        for frame in poisoned() {
            self.frames.poison.quarantine(frame);
        }
        self.withdraw_reported(block.section(), block.mask());
        let is_poisoned = |offset: usize| poisoned().any(|frame| block.offset_of(frame) == offset);
        let spare = (0..PAGEBLOCK_FRAMES).rev().find(|&offset| !is_poisoned(offset));
        let bitmap = spare.and_then(|spare| {
            self.bitmap_or_install(block, spare..spare + 1).or_record_violation()
        });
        // The bitmap is missing if all frames are poisoned.
        let Some((bitmap, bitmap_frames)) = bitmap else {
            block.state().set_divided_with_poison();
            return;
        };
        bitmap.write(0..0, bitmap_frames, false);
        for frame in poisoned() {
            let (word, bit) = word_and_bit(block.offset_of(frame));
            bitmap.poison(word);
            bitmap.take_flagged(word, bit);
        }
        block.state().set_divided_with_poison();
        self.open_written(block, bitmap);
        self.set_partial_if_takeable(block);
    }

    /// Poisons a frame of an online or offline pageblock. Control path only.
    pub(crate) fn poison(self, block: Block<'_>, frame: Pfn) -> Result<Poisoned, RangeErrorKind> {
        if let Some(state) = self.frames.poison.state_of(frame) {
            return Ok(state);
        }
        let is_recorded = self.frames.poison.insert(frame)
            || self.add_poison_page(frame) && self.frames.poison.insert(frame);
        if !is_recorded {
            return Err(RangeErrorKind::NoMemory);
        }
        if block.section().online.load(Ordering::Relaxed) & block.mask() == 0 {
            self.frames.poison.quarantine(frame);
            return Ok(Poisoned::Quarantined);
        }
        self.start_hiding();
        for _ in 0..ATTEMPTS {
            if self.quarantine_if_free(block, frame) {
                // A concurrent free may have done this already.
                self.frames.poison.quarantine(frame);
                return Ok(Poisoned::Quarantined);
            }
            if self.is_in_use(block, frame) {
                return Ok(self
                    .frames
                    .poison
                    .state_of(frame)
                    .or_record_violation()
                    .unwrap_or(Poisoned::InUse));
            }
            spin_hint();
        }
        if !self.frames.poison.change(frame, NONE) {
            return Ok(Poisoned::Quarantined);
        }
        self.heal(block);
        Err(RangeErrorKind::Busy)
    }

    /// Makes the table of poisoned frames longer by a page, which does not lie in the frame `bad`.
    /// Returns false if no kernel memory is free.
    #[cfg(not(loom))]
    fn add_poison_page(&self, bad: Pfn) -> bool {
        let Some(first) = self.take_for_words(1) else { return false };
        let mut page = Some(first);
        if first.contains(bad) {
            page = self.take_for_words(1);
            // The frame was not written to, so it still has the contents of free memory; and this
            // call has just allocated it, so freeing it cannot fail.
            self.frames.free_range(first).or_record_violation();
        }
        let Some(page) = page else { return false };
        // SAFETY: the frame was allocated, and stays allocated for ever.
        unsafe { self.frames.poison.pages().add(self.frames.direct_map().pointer(page.start())) };
        self.fill_reserves();
        true
    }

    /// Returns false: under loom the table does not grow.
    #[cfg(loom)]
    fn add_poison_page(&self, _: Pfn) -> bool {
        false
    }

    /// Returns the frames that hold the table of poisoned frames.
    #[cfg(not(loom))]
    pub(super) fn poison_pages(&self) -> impl Iterator<Item = Metadata> + use<'f, P> {
        let frames = self.frames.poison.pages().frames(self.frames.direct_map());
        frames.map(|frames| Metadata { frames, describes: PfnRange::EMPTY })
    }

    /// Quarantines a frame that is being freed, if it is poisoned. Returns whether it did, or
    /// `None` if the frame was quarantined before.
    pub(super) fn quarantine_if_poisoned(&self, frame: Pfn) -> Option<bool> {
        let is_poisoned = self.frames.poison.state_of(frame).is_some();
        (!is_poisoned || self.frames.poison.quarantine(frame)).then_some(is_poisoned)
    }
}

/// Returns the word and the bit of frame number `offset` of a pageblock in its bitmap.
fn word_and_bit(offset: usize) -> (usize, u64) {
    (offset / BITMAP_WORD_BITS, 1 << (offset % BITMAP_WORD_BITS))
}
