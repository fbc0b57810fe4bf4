//! Giving back: any sub-range of what was allocated, from any CPU.
//!
//! First the bits, then the count: a count never promises a bit that is not there.

use super::{Block, Frames, FreeError, FreeErrorKind};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{LINE_WORD_BITS, PAGEBLOCK_FRAMES, mask};
use crate::known::Known;
use crate::platform::Platform;
use crate::section::{Given, LIVE, Line, POISON, count};
use crate::sync::Ordering;
use core::ops::Range;

impl<P: Platform> Frames<P> {
    /// Gives `range` back: all or any part of one or of several allocations.
    ///
    /// A range is only numbers. One that another machine has allocated is refused like any that is
    /// not allocated here; if it is allocated here as well, it is taken for that, as it would be
    /// from anybody who does not own it: nothing is counted wrongly, but its owner has lost it.
    ///
    /// Context: any. Calls nothing back, holds no locks, never waits. Cost: 2 atomic
    /// read-modify-writes for up to 64 frames in a word, 1 a whole pageblock and 1 a section.
    ///
    /// # Errors
    /// [`FreeError`] if any frame of it is not allocated, told before anything is freed. A double
    /// free that races with other frees of the same frames is told after a part was freed, and one
    /// that races with a new use of the pageblock is detected, not cured: honest callers are safe.
    #[inline]
    pub fn free(&self, range: PfnRange) -> Result<(), FreeError> {
        if range.frames() == 1 { self.free_frame(range) } else { self.free_many(range) }
    }

    /// One frame. Inlined as far as it goes without changing anybody's view of the pageblock.
    #[inline]
    fn free_frame(&self, frame: PfnRange) -> Result<(), FreeError> {
        let refused = |kind| Err(FreeError { range: frame, kind });
        let Some((slot, offset)) = self.find(frame.start()) else {
            return refused(FreeErrorKind::Foreign);
        };
        let Some(block) = self.block_at(slot, offset) else {
            return refused(FreeErrorKind::Foreign);
        };
        let at = offset % PAGEBLOCK_FRAMES;
        if block.counter.load() & (LIVE | POISON) != LIVE {
            return self.free_in(&block, at..at + 1, frame);
        }
        let Some(line) = block.line() else { return self.free_in(&block, at..at + 1, frame) };
        let (word, bit) = (at / LINE_WORD_BITS, 1 << (at % LINE_WORD_BITS));
        if !line.give(word, bit) {
            return refused(FreeErrorKind::NotAllocated);
        }
        if block.counter.give_within(1) || self.count_freed(&block, line, word, bit) {
            Ok(())
        } else {
            refused(FreeErrorKind::NotAllocated)
        }
    }

    fn free_many(&self, range: PfnRange) -> Result<(), FreeError> {
        let refused = |range, kind| Err(FreeError { range, kind });
        if range.is_empty() {
            return refused(range, FreeErrorKind::Empty);
        }
        let Some((slot, offset)) = self.find(range.start()) else {
            return refused(range, FreeErrorKind::Foreign);
        };
        if range.frames() == PAGEBLOCK_FRAMES as u64 && offset.is_multiple_of(PAGEBLOCK_FRAMES) {
            return self.free_pageblock(slot, offset, range);
        }
        let region = &self.slots()[slot];
        if !region.range().is_some_and(|all| all.covers(range)) {
            return refused(range, FreeErrorKind::Foreign);
        }
        let pieces = || {
            range.chunks(PAGEBLOCK_FRAMES as u64).filter_map(|piece| {
                let offset = region.offset_of(piece.start())?;
                let first = offset % PAGEBLOCK_FRAMES;
                #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
                let frames = first..first + piece.frames() as usize;
                Some((self.block_at(slot, offset)?, frames, piece))
            })
        };
        // All of it is looked at before anything is written.
        for (block, frames, piece) in pieces() {
            if !self.is_allocated(&block, frames, piece) {
                return refused(piece, why_refused(&block));
            }
        }
        // Whole pageblocks of a section are published together.
        let mut whole = (0, 0);
        let mut moves = self.no_moves_yet();
        for (block, frames, piece) in pieces() {
            if whole.0 != block.index {
                self.publish_whole(slot, whole, &mut moves);
                whole = (block.index, 0);
            }
            let owned =
                if frames.len() == PAGEBLOCK_FRAMES { block.counter.own_from(0) } else { None };
            match owned {
                Some(true) => {} // drained: its isolation token owns it now
                Some(false) => whole.1 |= block.mask(),
                None => {
                    // Before what may be refused, which ends this.
                    self.publish_whole(slot, whole, &mut moves);
                    whole.1 = 0;
                    self.free_in(&block, frames, piece)?;
                }
            }
        }
        self.publish_whole(slot, whole, &mut moves);
        Ok(())
    }

    /// Whether all of `range` is allocated, as far as can be told without taking part.
    pub(super) fn check_allocated(&self, range: PfnRange) -> Result<(), FreeError> {
        let refused = |range, kind| Err(FreeError { range, kind });
        if range.is_empty() {
            return refused(range, FreeErrorKind::Empty);
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let Some(block) = self.block_of(piece.start()) else {
                return refused(piece, FreeErrorKind::Foreign);
            };
            let first = block.offset_of(piece.start());
            #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
            let frames = first..first + piece.frames() as usize;
            if !self.is_allocated(&block, frames, piece) {
                return refused(piece, why_refused(&block));
            }
        }
        Ok(())
    }

    /// One whole pageblock: by one read-modify-write, and one to publish it.
    fn free_pageblock(&self, slot: usize, offset: usize, all: PfnRange) -> Result<(), FreeError> {
        let refused = |kind| Err(FreeError { range: all, kind });
        let Some(block) = self.block_at(slot, offset) else {
            return refused(FreeErrorKind::Foreign);
        };
        match block.counter.own_from(0) {
            None => return self.free_marked(&block, 0..PAGEBLOCK_FRAMES, all),
            Some(true) => {} // drained: its isolation token owns it now
            Some(false) => {
                self.show_free(slot, block.index, block.mask(), &mut self.no_moves_yet());
            }
        }
        Ok(())
    }

    fn publish_whole(
        &self,
        slot: usize,
        (index, blocks): (usize, u64),
        moves: &mut super::quiet::Moves<'_>,
    ) {
        if blocks != 0 {
            self.show_free(slot, index, blocks, moves);
        }
    }

    /// Frees some frames of one pageblock.
    fn free_in(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), FreeError> {
        match block.counter.load() & (LIVE | POISON) {
            0 | POISON => Err(FreeError { range: piece, kind: why_refused(block) }),
            LIVE => self.free_run(block, frames, piece),
            _ => self.free_marked(block, frames, piece),
        }
    }

    /// Frees some frames of a pageblock that has poisoned ones, which stay.
    #[cold]
    fn free_marked(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), FreeError> {
        let refused = Err(FreeError { range: piece, kind: why_refused(block) });
        let is_marked = block.counter.load() & (LIVE | POISON) == LIVE | POISON;
        // Before anything poisoned goes out that somebody still has.
        if !is_marked || !self.is_allocated(block, frames.clone(), piece) {
            return refused;
        }
        let Some(mut runs) = self.without_poison(block, frames) else { return refused };
        runs.try_for_each(|run| self.free_run(block, run, piece))
    }

    /// Frees frames of a live pageblock none of which was poisoned a moment ago.
    fn free_run(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), FreeError> {
        let refused = |range| Err(FreeError { range, kind: FreeErrorKind::NotAllocated });
        let mut moves = self.no_moves_yet();
        // Without lines it was handed out whole and is now divided; the last frame may have to stay.
        let spare = frames.end - 1;
        let Some((line, lent)) = self.line_or_lend(block, spare, &mut moves) else {
            return refused(piece);
        };
        let frames = if lent { frames.start..spare } else { frames };
        for (word, bits) in words_of(frames) {
            let part = || part_of(block.start(), word, bits).known().unwrap_or(piece);
            if !line.give(word, bits) {
                return refused(part());
            }
            if !self.count_freed(block, line, word, bits) {
                return refused(part());
            }
        }
        Ok(())
    }

    /// These bits of the pageblock's line are set: counts them. False if the pageblock has changed
    /// hands, which it can under a double free.
    #[inline(never)]
    fn count_freed(&self, block: &Block<'_>, line: &Line, word: usize, bits: u64) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "at most 64")]
        let count = |bits: u64, honest| {
            self.give(block, bits.count_ones() as u16, honest, &mut self.no_moves_yet())
        };
        let counted = match count(bits, false) {
            Some(Given::Poisoned) => match self.withhold(block, line, word, bits) {
                0 => return true,
                left => count(left, true),
            },
            counted => counted,
        };
        if counted.is_none() {
            line.take(word, bits);
        }
        counted.is_some()
    }

    /// Whether none of these frames is free, as far as can be told without taking part.
    pub(super) fn is_allocated(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> bool {
        let counter = block.counter.load();
        if counter & LIVE == 0 || (counter & POISON != 0 && self.out_in(piece).next().is_some()) {
            return false;
        }
        if frames.len() == PAGEBLOCK_FRAMES {
            return count(counter) == 0;
        }
        block.line().is_none_or(|line: &Line| {
            words_of(frames)
                .all(|(word, bits)| line.words()[word].load(Ordering::Relaxed) & bits == 0)
        })
    }
}

/// Why frames that are not allocated cannot be freed.
#[cold]
fn why_refused(block: &Block<'_>) -> FreeErrorKind {
    let online = block.section.online.load(Ordering::Relaxed) & block.mask() != 0;
    if online { FreeErrorKind::NotAllocated } else { FreeErrorKind::Foreign }
}

/// A run of frames of a pageblock as words of its line.
#[inline]
pub(super) fn words_of(frames: Range<usize>) -> impl Iterator<Item = (usize, u64)> + Clone {
    let words = frames.start / LINE_WORD_BITS..frames.end.div_ceil(LINE_WORD_BITS);
    let words = if frames.is_empty() { 0..0 } else { words };
    words.map(move |word| {
        let base = word * LINE_WORD_BITS;
        let from = frames.start.saturating_sub(base);
        let to = (frames.end - base).min(LINE_WORD_BITS);
        (word, mask(to) & !mask(from))
    })
}

/// The frames that these bits of a line stand for.
fn part_of(start: Pfn, word: usize, bits: u64) -> Option<PfnRange> {
    let first = word * LINE_WORD_BITS + bits.trailing_zeros() as usize;
    PfnRange::with_len(start.checked_add(first as u64)?, u64::from(bits.count_ones()))
}
