//! Poison: frames that the hardware has given up never come back.
//!
//! A poisoned frame that is free is allocated for good at once; one that is in use goes out when it
//! is freed. Which frames are poisoned stands in a small table. The block state of a pageblock that
//! has some says so: as long as it is live it never becomes wholly free, and whoever frees there
//! looks into the table. So freeing anywhere else costs nothing more.
//!
//! Only the control path poisons and heals. It meets frees that go on meanwhile like this: it
//! writes the table, marks the block state, then looks at the frame's bit; a free sets the bit,
//! then counts. If the free counts before the mark, the control path sees the bit. If it meets the
//! mark, it looks into the table, with a fence on either side: one of the two sees what the other
//! has done, and takes the frame out.
//!
//! A pageblock that an isolation token owns has no bits to be taken: the token's release looks into
//! the table instead, and divides it around them. So does memory that comes online again.

use super::exhaustion::Moves;
use super::poison_table::NONE;
use super::{Frames, Poisoned};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::{Ordering, fence, spin_hint};
use crate::words::{Block, FrameBitmap, SectionRef};
use core::ops::Range;

/// Times that a frame which is changing hands is looked at before giving up.
const LOOKS: usize = if cfg!(loom) { 2 } else { 1000 };

impl<P> Frames<P> {
    /// All poisoned frames.
    pub(crate) fn poisoned(&self) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.poison.frames()
    }

    /// Those of `range`.
    pub(crate) fn poisoned_in(&self, range: PfnRange) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.poisoned().filter(move |&(frame, _)| range.contains(frame))
    }

    /// Those of `range` that are out.
    pub(crate) fn out_in(&self, range: PfnRange) -> impl Iterator<Item = Pfn> {
        let out = self.poisoned_in(range).filter(|&(_, state)| state == Poisoned::Out);
        out.map(|(frame, _)| frame)
    }

    /// The control path only: `range` is no longer there, and what comes there is other memory.
    pub(crate) fn forget_poison(&self, range: PfnRange) {
        self.poison.remove(range);
    }
}

/// Why a frame of the allocator's could not be poisoned.
pub(crate) enum Obstacle {
    TableFull,
    Busy,
}

impl<P: Platform> Frames<P> {
    /// The control path only: poisons a frame of an online pageblock, or of an offline one.
    pub(crate) fn poison(&self, block: &Block<'_>, frame: Pfn) -> Result<Poisoned, Obstacle> {
        if let Some(state) = self.poison.state_of(frame) {
            return Ok(state);
        }
        if !self.poison.insert(frame) {
            return Err(Obstacle::TableFull);
        }
        if block.section.online.load(Ordering::Relaxed) & block.mask() == 0 {
            self.poison.take_out(frame);
            return Ok(Poisoned::Out);
        }
        let mut moves = self.no_moves_yet();
        moves.start();
        for _ in 0..LOOKS {
            if self.withdraw(block, frame, &mut moves) {
                // Who freed it meanwhile may have done it already.
                self.poison.take_out(frame);
                return Ok(Poisoned::Out);
            }
            if self.is_in_use(block, frame) {
                return Ok(self.poison.state_of(frame).known().unwrap_or(Poisoned::InUse));
            }
            spin_hint();
        }
        if !self.poison.change(frame, NONE) {
            return Ok(Poisoned::Out);
        }
        self.heal(block, &mut moves);
        Err(Obstacle::Busy)
    }

    /// Takes a free frame out of a pageblock, or finds that a token owns it.
    fn withdraw(&self, block: &Block<'_>, frame: Pfn, moves: &mut Moves<'_>) -> bool {
        let at = block.offset_of(frame);
        if self.take_frame(block, at, moves) {
            block.state.poison();
            return true;
        }
        if !block.state.poison() {
            // Pairs with the one in `divide_around_poison`.
            fence(Ordering::SeqCst);
            return block.section.isolated.load(Ordering::Acquire) & block.mask() != 0;
        }
        // Isolated and not drained. The control path may look at bitmaps without a credit: nobody
        // else drops them.
        let (word, bit) = place(at);
        let isolated = block.section.isolated.load(Ordering::Acquire) & block.mask() != 0;
        if !isolated || !block.state.credit_for_good() {
            return false;
        }
        let taken = block.bitmap().is_some_and(|bitmap| bitmap.take(word, bit));
        if !taken {
            self.give_credit(block, 1, moves);
        }
        taken
    }

    /// Whether the frame is allocated for certain, in a pageblock that is marked.
    fn is_in_use(&self, block: &Block<'_>, frame: Pfn) -> bool {
        if !block.state.poison() {
            return false;
        }
        fence(Ordering::SeqCst); // pairs with the one in `withhold`
        let (word, bit) = place(block.offset_of(frame));
        block.bitmap().is_none_or(|bitmap| bitmap.words()[word].load(Ordering::Acquire) & bit == 0)
    }

    /// Takes the mark away if nothing is poisoned in this pageblock.
    fn heal(&self, block: &Block<'_>, moves: &mut Moves<'_>) {
        if self.poisoned_in(block.range()).next().is_some() {
            return;
        }
        block.state.heal();
        // Meanwhile it may have become wholly free, and stayed split for the mark.
        if block.state.own_free() {
            self.show_coalesced(block, moves);
        }
    }

    /// The caller sets these bits of a marked pageblock and has not counted them yet: takes those
    /// that are poisoned back, and says which are left.
    pub(super) fn withhold(
        &self,
        block: &Block<'_>,
        bitmap: &FrameBitmap,
        word: usize,
        bits: u64,
    ) -> u64 {
        fence(Ordering::SeqCst); // pairs with the one in `is_in_use`
        self.poisoned_in(block.range()).fold(bits, |left, (frame, _)| {
            let (in_word, bit) = place(block.offset_of(frame));
            // If somebody has allocated it since its bit was set, then it is theirs to free.
            if in_word == word && left & bit != 0 && bitmap.take(word, bit) {
                self.poison.take_out(frame);
                left & !bit
            } else {
                left
            }
        })
    }

    /// These frames of a marked pageblock are being freed: takes those that are poisoned out, and
    /// says what is left, in runs. `None` if one of them was out already.
    pub(super) fn without_poison(
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

    /// The caller owns these pageblocks of a section, and has taken them out of `isolated`: divides
    /// those that have poison around it, and says which are left.
    pub(crate) fn divide_around_poison(
        &self,
        section: SectionRef<'_>,
        owned: u64,
        moves: &mut Moves<'_>,
    ) -> u64 {
        // Pairs with the one in `withdraw`: whoever poisons sees that they are no longer isolated,
        // or the poison is seen here.
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
        let out = poisoned().count();
        for frame in poisoned() {
            self.poison.take_out(frame);
        }
        block.section.reported.fetch_and(!block.mask(), Ordering::Relaxed);
        let is_poisoned = |at: usize| poisoned().any(|frame| block.offset_of(frame) == at);
        let spare = (0..PAGEBLOCK_FRAMES).rev().find(|&at| !is_poisoned(at));
        let bitmap = spare
            .and_then(|spare| Some((spare, self.bitmap_or_lend(block, spare, moves).known()?)));
        // All of it may be poisoned.
        let Some((spare, (bitmap, lent))) = bitmap else {
            block.state.set_live_with_poison(0);
            return;
        };
        bitmap.write(0..0, lent.then_some(spare));
        for frame in poisoned() {
            let (word, bit) = place(block.offset_of(frame));
            bitmap.take(word, bit);
        }
        let free = PAGEBLOCK_FRAMES - out - usize::from(lent);
        block.state.set_live_with_poison(free);
        self.show_partial_if_any(block);
    }
}

/// Word and bit of a frame in its pageblock's bitmap.
fn place(at: usize) -> (usize, u64) {
    (at / BITMAP_WORD_BITS, 1 << (at % BITMAP_WORD_BITS))
}
