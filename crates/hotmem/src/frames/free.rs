//! Frees any sub-range of allocated frames, from any CPU.
//!
//! One compare-exchange sets the bits of a word, if none of them is set already. Most frees are
//! then complete. If the word had no free frame before, or if all its frames are free afterwards,
//! the free checks whether the pageblock must be made findable or has become wholly free (see
//! `frames/findable.rs`).

use super::Frames;
use super::exhaustion::Moves;
use super::free_frame::Freed;
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES, is_pageblocks};
use crate::known::Known;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::words::{Block, FrameBitmap, SectionRef, bitmap_words_of};
use core::ops::Range;

const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;

impl<P: Platform> Frames<P> {
    /// Frees frames that the caller owns by number. Callers inside the crate keep the promises of
    /// [`free_raw`](Self::free_raw).
    ///
    /// A range consists of numbers only. If it comes from another machine, the call fails, unless
    /// frames of this machine with the same numbers are allocated. Then it frees those frames: the
    /// metadata stays consistent, but the owner of those frames has lost them.
    ///
    /// # Errors
    /// [`RangeError`] if a frame of `range` is not allocated. The call then frees nothing, with two
    /// exceptions. If other calls free the same frames at the same time, the error may come after a
    /// part was freed. If the pageblock is used again at the same time, the double free is
    /// detected, but not undone.
    #[inline(always)]
    pub(crate) fn free_range(&self, range: PfnRange) -> Result<(), RangeError> {
        let freed = match range.frames() {
            1 => self.free_frame(range.start()),
            BLOCK if is_pageblocks(range) => self.free_block(range.start()),
            _ => Freed::No,
        };
        match freed {
            Freed::Yes => {}
            Freed::Last => self.complete_last_free(range.start()),
            Freed::No => return self.free_slowly(range),
        }
        Ok(())
    }

    #[inline(never)]
    fn free_slowly(&self, range: PfnRange) -> Result<(), RangeError> {
        if range.frames() == 1 { self.free_frame_slowly(range) } else { self.free_pieces(range) }
    }

    /// Frees one frame whose word is held, has poison, or lies in an own bitmap.
    fn free_frame_slowly(&self, frame: PfnRange) -> Result<(), RangeError> {
        let Some(block) = self.words.block_of(frame.start()) else {
            return Err(RangeError { range: frame, kind: RangeErrorKind::Foreign });
        };
        let at = offset_of(frame.start());
        self.free_in(&block, at..at + 1, frame)
    }

    fn free_pieces(&self, range: PfnRange) -> Result<(), RangeError> {
        let refused = |range, kind| Err(RangeError { range, kind });
        if range.is_empty() {
            return refused(range, RangeErrorKind::Empty);
        }
        let Some(first) = self.words.block_of(range.start()) else {
            let piece = range.chunks(PAGEBLOCK_FRAMES as u64).next();
            let piece = piece.filter(|_| self.words.covers(range));
            return refused(piece.unwrap_or(range), RangeErrorKind::Foreign);
        };
        if range.frames() == PAGEBLOCK_FRAMES as u64 && is_pageblocks(range) {
            return self.free_pageblock(&first, range);
        }
        if !first.range().covers(range) && !self.words.covers(range) {
            return refused(range, RangeErrorKind::Foreign);
        }
        // Check the whole range before anything is written.
        self.check_allocated(range)?;
        // Publish the whole pageblocks of a section together.
        let mut whole = (first.section, 0);
        let mut moves = self.new_moves();
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            // `check_allocated` has found words for all frames.
            let Some(block) = self.words.block_of(piece.start()).known() else { continue };
            let first = offset_of(piece.start());
            #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
            let frames = first..first + piece.frames() as usize;
            if whole.0 != block.section {
                self.publish_whole(whole, &mut moves);
                whole = (block.section, 0);
            }
            let owned = if frames.len() == PAGEBLOCK_FRAMES {
                block.state().take_back_whole()
            } else {
                None
            };
            match owned {
                Some(true) => {} // drained: its isolation token owns it now
                Some(false) => whole.1 |= block.mask(),
                None => {
                    // Publish the pageblocks so far first, because the free below may fail and
                    // return.
                    self.publish_whole(whole, &mut moves);
                    whole.1 = 0;
                    self.free_in(&block, frames, piece)?;
                }
            }
        }
        self.publish_whole(whole, &mut moves);
        Ok(())
    }

    /// Checks that all of `range` is allocated. A concurrent free may make the result out of date.
    pub(super) fn check_allocated(&self, range: PfnRange) -> Result<(), RangeError> {
        let refused = |range, kind| Err(RangeError { range, kind });
        if range.is_empty() {
            return refused(range, RangeErrorKind::Empty);
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let Some(block) = self.words.block_of(piece.start()) else {
                return refused(piece, RangeErrorKind::Foreign);
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

    /// Frees a whole pageblock by one read-modify-write, and publishes it by another.
    fn free_pageblock(&self, block: &Block<'_>, all: PfnRange) -> Result<(), RangeError> {
        match block.state().take_back_whole() {
            // The pageblock is divided: check all of it before anything is written.
            None => {
                self.check_allocated(all)?;
                return self.free_in(block, 0..PAGEBLOCK_FRAMES, all);
            }
            Some(true) => {} // drained: its isolation token owns it now
            Some(false) => {
                self.show_free(block.section, block.mask(), &mut self.new_moves());
            }
        }
        Ok(())
    }

    fn publish_whole(&self, (section, blocks): (SectionRef<'_>, u64), moves: &mut Moves<'_>) {
        if blocks != 0 {
            self.show_free(section, blocks, moves);
        }
    }

    /// Frees `frames` of one pageblock.
    #[inline(never)]
    fn free_in(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), RangeError> {
        let state = block.state().load();
        if !state.is_live() {
            return Err(RangeError { range: piece, kind: why_refused(block) });
        }
        if state.has_poison() {
            self.free_marked(block, frames, piece)
        } else {
            self.free_run(block, frames, piece)
        }
    }

    /// Frees `frames` of a pageblock that has poisoned frames. Takes those of `frames` that are
    /// poisoned out of use.
    #[cold]
    fn free_marked(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), RangeError> {
        let refused = Err(RangeError { range: piece, kind: why_refused(block) });
        let state = block.state().load();
        let is_marked = state.is_live() && state.has_poison();
        // Check first: a poisoned frame may still have an owner, and is then not to be taken out.
        if !is_marked || !self.is_allocated(block, frames.clone(), piece) {
            return refused;
        }
        let Some(mut runs) = self.take_out_poisoned(block, frames) else { return refused };
        runs.try_for_each(|run| self.free_run(block, run, piece))
    }

    /// Frees frames of a live pageblock. The caller has checked that none of them is poisoned.
    fn free_run(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), RangeError> {
        let refused = |range| Err(RangeError { range, kind: RangeErrorKind::NotAllocated });
        let mut moves = self.new_moves();
        // If the pageblock has no bitmap, it was allocated as a whole, and is divided now. The last
        // of the freed frames may be needed for the bitmaps.
        let spare = frames.end - 1;
        let Some((bitmap, in_spare)) = self.bitmap_or_install(block, spare, &mut moves) else {
            return refused(piece);
        };
        let frames = if in_spare { frames.start..spare } else { frames };
        block.note_freed_run(frames.len());
        let mut state = block.state().load();
        if state.is_whole() {
            let Some(before) = block.state().mark_partly_freed() else { return refused(piece) };
            state = before;
        }
        let parted = state.is_whole() || state.is_partly_freed();
        let mut freed = Ok(());
        for (word, bits) in bitmap_words_of(frames) {
            let part = || part_of(block.start(), word, bits).known().unwrap_or(piece);
            if self.free_bits(block, bitmap, word, bits, &mut moves).is_none() {
                freed = refused(part());
                break;
            }
        }
        if parted {
            self.try_open_parts(block, bitmap, &mut moves);
        }
        freed
    }

    /// Frees `bits` of one word of a live pageblock. Returns `None`, and changes nothing, if one of
    /// the frames is free already.
    fn free_bits(
        &self,
        block: &Block<'_>,
        bitmap: &FrameBitmap,
        word: usize,
        bits: u64,
        moves: &mut Moves<'_>,
    ) -> Option<()> {
        let freed = bitmap.free_flagged(word, bits, || moves.start())?;
        if !freed.was_partial() || freed.is_all_free_unflagged() {
            self.after_free(block, bitmap, word, freed, moves);
        }
        Some(())
    }

    /// Frees again the frames of `bits` in one word. The caller has just taken them.
    pub(super) fn put_back_bits(
        &self,
        block: &Block<'_>,
        word: usize,
        bits: u64,
        moves: &mut Moves<'_>,
    ) {
        if let Some(bitmap) = self.bitmap_of(block, moves).known() {
            self.free_bits(block, bitmap, word, bits, moves).known();
        }
    }

    /// Returns whether all these frames are allocated. A concurrent free may make the result out of
    /// date.
    pub(super) fn is_allocated(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> bool {
        let state = block.state().load();
        if !state.is_live()
            || (state.has_poison() && self.poisoned_and_out_in(piece).next().is_some())
        {
            return false;
        }
        // A pageblock that was allocated as a whole may have no bitmap.
        self.with_bitmap(block, |bitmap| {
            bitmap.is_none_or(|bitmap| {
                bitmap_words_of(frames).all(|(word, bits)| bitmap.bits_in(word) & bits == 0)
            })
        })
    }
}

/// Returns the number of a frame in its pageblock.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "below 512")]
fn offset_of(frame: Pfn) -> usize {
    (frame.number() % PAGEBLOCK_FRAMES as u64) as usize
}

/// Returns the error for a free of frames of `block` that are not allocated.
#[cold]
fn why_refused(block: &Block<'_>) -> RangeErrorKind {
    let online = block.section.online.load(Ordering::Relaxed) & block.mask() != 0;
    if online { RangeErrorKind::NotAllocated } else { RangeErrorKind::Foreign }
}

/// Returns the frames of `bits` in word number `word` of the bitmap of the pageblock at `start`.
fn part_of(start: Pfn, word: usize, bits: u64) -> Option<PfnRange> {
    let first = word * BITMAP_WORD_BITS + bits.trailing_zeros() as usize;
    PfnRange::with_len(start.checked_add(first as u64)?, u64::from(bits.count_ones()))
}
