//! Keeps poisoned frames, which the hardware reports as faulty, out of use permanently.
//!
//! A poisoned frame is *taken out*: its bit in the bitmap stays clear, so that it is never
//! allocated again. A free frame is taken out at once; a frame in use is taken out when it is
//! freed. A small table lists the poisoned frames. The block state of a pageblock with poisoned
//! frames has a mark: as long as such a pageblock is live, it never becomes wholly free, and each
//! free in it reads the table. A free in any other pageblock costs no more than without poison.
//!
//! Only the control path poisons and heals. It writes the table, marks the block state, and then
//! sets a flag in the word of the bitmap that has the frame's bit, by a read-modify-write that
//! reads that bit as well. A free sets the bit by another read-modify-write of the same word, which
//! reads the flag. So either the control path finds the frame free and takes it out, or the free
//! finds the flag and reads the table.
//!
//! If an isolation token owns a pageblock, its bitmap is not in use, so no frame can be taken out.
//! Instead, the release of the token reads the table, and divides the pageblock so that only its
//! other frames become free. Putting memory online does the same.

use super::exhaustion::Moves;
use super::poison_table::{MAX_POISONED, NONE};
use super::{Frames, Poisoned};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::known::Known;
use crate::platform::Platform;
use crate::range_error::RangeErrorKind;
use crate::sync::{Ordering, fence, spin_hint};
use crate::words::{Block, FrameBitmap, SectionRef};
use core::ops::Range;

/// The number of attempts to poison a frame whose pageblock is being allocated or freed. After
/// that, the call fails as "busy".
const ATTEMPTS: usize = if cfg!(loom) { 2 } else { 1000 };

impl<P> Frames<P> {
    /// Returns all poisoned frames.
    pub(crate) fn poisoned(&self) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.poison.frames()
    }

    /// Returns the poisoned frames of `range`.
    pub(crate) fn poisoned_in(&self, range: PfnRange) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.poisoned().filter(move |&(frame, _)| range.contains(frame))
    }

    /// Returns the poisoned frames of `range` that are taken out.
    pub(crate) fn poisoned_and_out_in(&self, range: PfnRange) -> impl Iterator<Item = Pfn> {
        let out = self.poisoned_in(range).filter(|&(_, state)| state == Poisoned::Out);
        out.map(|(frame, _)| frame)
    }

    /// Forgets the poisoned frames of `range`, which was removed: memory that is added in its place
    /// later is different memory. Control path only.
    pub(crate) fn forget_poison(&self, range: PfnRange) {
        self.poison.remove(range);
    }
}

impl<P: Platform> Frames<P> {
    /// Poisons a frame of an online or offline pageblock. Control path only.
    pub(crate) fn poison(&self, block: &Block<'_>, frame: Pfn) -> Result<Poisoned, RangeErrorKind> {
        if let Some(state) = self.poison.state_of(frame) {
            return Ok(state);
        }
        if !self.poison.insert(frame) {
            return Err(RangeErrorKind::TooMany(MAX_POISONED));
        }
        if block.section.online.load(Ordering::Relaxed) & block.mask() == 0 {
            self.poison.take_out(frame);
            return Ok(Poisoned::Out);
        }
        let mut moves = self.new_moves();
        moves.start();
        for _ in 0..ATTEMPTS {
            if self.withdraw(block, frame, &mut moves) {
                // A concurrent free may have done this already.
                self.poison.take_out(frame);
                return Ok(Poisoned::Out);
            }
            if self.is_in_use(block, frame, &mut moves) {
                return Ok(self.poison.state_of(frame).known().unwrap_or(Poisoned::InUse));
            }
            spin_hint();
        }
        if !self.poison.change(frame, NONE) {
            return Ok(Poisoned::Out);
        }
        self.heal(block, &mut moves);
        Err(RangeErrorKind::Busy)
    }

    /// Takes out a frame if it is free. Returns whether the frame is out of use: it was taken out,
    /// or a token owns its pageblock.
    fn withdraw(&self, block: &Block<'_>, frame: Pfn, moves: &mut Moves<'_>) -> bool {
        let (word, bit) = word_and_bit(block.offset_of(frame));
        if self.take_frame(block, block.offset_of(frame), moves) {
            block.state().poison();
            if let Some(bitmap) = self.bitmap_of(block, moves).known() {
                bitmap.poison(word);
            }
            return true;
        }
        if block.state().poison().is_none() {
            // Pairs with the fence in `divide_around_poison`.
            fence(Ordering::SeqCst);
            return block.section.isolated.load(Ordering::Acquire) & block.mask() != 0;
        }
        // If the pageblock has no bitmap, it is allocated as a whole, and the first free of a part
        // of it will find the mark.
        let Some(bitmap) = self.bitmap_of(block, moves) else { return false };
        bitmap.poison(word);
        bitmap.take_out(word, bit)
    }

    /// Returns whether the frame is certainly allocated. Its pageblock is marked.
    fn is_in_use(&self, block: &Block<'_>, frame: Pfn, moves: &mut Moves<'_>) -> bool {
        let Some(before) = block.state().poison() else { return false };
        let (word, bit) = word_and_bit(block.offset_of(frame));
        // The bit is final unless the words are held because the pageblock is being divided or
        // taken. The words of a pageblock that was allocated as a whole are held, too, but its bits
        // are final.
        let is_settled = |bitmap: &FrameBitmap| {
            before.is_whole() || before.is_partly_freed() || !bitmap.is_held()
        };
        self.bitmap_of(block, moves)
            .is_none_or(|bitmap| bitmap.poison(word) & bit == 0 && is_settled(bitmap))
    }

    /// Clears the mark of a pageblock if no frame of it is poisoned.
    fn heal(&self, block: &Block<'_>, moves: &mut Moves<'_>) {
        if self.poisoned_in(block.range()).next().is_some() {
            return;
        }
        let bitmap = self.bitmap_of(block, moves);
        if let Some(bitmap) = bitmap {
            bitmap.heal();
        }
        block.state().heal();
        // Look whether all frames are free: they may have become free while the mark kept the
        // pageblock divided.
        if let Some(bitmap) = bitmap {
            self.show_released(block, bitmap, moves);
        }
    }

    /// Sets the flag of poison in those words of a marked pageblock that have poisoned frames.
    pub(super) fn flag_poison(&self, block: &Block<'_>, bitmap: &FrameBitmap) {
        for (frame, _) in self.poisoned_in(block.range()) {
            bitmap.poison(word_and_bit(block.offset_of(frame)).0);
        }
    }

    /// Takes out the poisoned frames of `bits`. The caller has just set these bits, in a word with
    /// the flag of poison.
    pub(super) fn withhold(&self, block: &Block<'_>, bitmap: &FrameBitmap, word: usize, bits: u64) {
        for (frame, _) in self.poisoned_in(block.range()) {
            let (in_word, bit) = word_and_bit(block.offset_of(frame));
            // If another CPU has allocated the frame since its bit was set, the next free takes the
            // frame out.
            if in_word == word && bits & bit != 0 && bitmap.take_out(word, bit) {
                self.poison.take_out(frame);
            }
        }
    }

    /// Takes out those of `frames` that are poisoned, and returns the others as runs. `frames` are
    /// being freed, and their pageblock has the mark. Returns `None` if one of the frames was taken
    /// out already.
    pub(super) fn take_out_poisoned(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
    ) -> Option<impl Iterator<Item = Range<usize>>> {
        let poisoned = |at: usize| {
            let frame = block.start().checked_add(at as u64)?;
            self.poison.state_of(frame).map(|state| (frame, state))
        };
        let (mut from, end) = (frames.start, frames.end);
        let mut states = frames.filter_map(poisoned).map(|(_, state)| state);
        if states.any(|state| state == Poisoned::Out) {
            return None;
        }
        let taken_out = move |at: &usize| match poisoned(*at) {
            Some((frame, _)) => {
                self.poison.take_out(frame);
                true
            }
            None => false,
        };
        Some(core::iter::from_fn(move || {
            from = (from..end).find(|at| !taken_out(at))?;
            let run = from..(from..end).find(&taken_out).unwrap_or(end);
            from = run.end;
            Some(run)
        }))
    }

    /// Divides each pageblock of `owned` that has poisoned frames, so that only its other frames
    /// become free. Returns the pageblocks of `owned` without poisoned frames. The caller owns all
    /// of `owned`, and has cleared their `isolated` bits.
    pub(crate) fn divide_around_poison(
        &self,
        section: SectionRef<'_>,
        owned: u64,
        moves: &mut Moves<'_>,
    ) -> u64 {
        // Pairs with the fence in `withdraw`: either the poisoning call sees that the pageblocks
        // are no longer isolated, or this function sees the poison.
        fence(Ordering::SeqCst);
        let mut left = owned;
        for (frame, _) in self.poisoned() {
            if let Some(block) = self.words.block_of(frame)
                && block.section == section
                && left & block.mask() != 0
            {
                left &= !block.mask();
                self.divide_around(&block, moves);
            }
        }
        left
    }

    fn divide_around(&self, block: &Block<'_>, moves: &mut Moves<'_>) {
        let poisoned = || self.poisoned_in(block.range()).map(|(frame, _)| frame);
        for frame in poisoned() {
            self.poison.take_out(frame);
        }
        block.section.reported.fetch_and(!block.mask(), Ordering::Relaxed);
        let is_poisoned = |at: usize| poisoned().any(|frame| block.offset_of(frame) == at);
        let spare = (0..PAGEBLOCK_FRAMES).rev().find(|&at| !is_poisoned(at));
        let bitmap = spare
            .and_then(|spare| Some((spare, self.bitmap_or_install(block, spare, moves).known()?)));
        // The bitmap is missing if all frames are poisoned.
        let Some((spare, (bitmap, in_spare))) = bitmap else {
            block.state().set_divided_with_poison();
            return;
        };
        bitmap.write(0..0, in_spare.then_some(spare));
        for frame in poisoned() {
            let (word, bit) = word_and_bit(block.offset_of(frame));
            bitmap.poison(word);
            bitmap.take_out(word, bit);
        }
        block.state().set_divided_with_poison();
        bitmap.open(block.zone());
        self.show_partial_if_any(block, moves);
    }
}

/// Returns the word and the bit of frame number `at` of a pageblock in its bitmap.
fn word_and_bit(at: usize) -> (usize, u64) {
    (at / BITMAP_WORD_BITS, 1 << (at % BITMAP_WORD_BITS))
}
