//! Frees any sub-range of allocated frames, from any CPU.
//!
//! One compare-exchange sets the bits of a word, if none of them is set already. Most frees are
//! then complete. If the word had no free frame before, or if all its frames are free afterwards,
//! the free checks whether searches can find the pageblock, and whether all of the pageblock is
//! free (see `frames/free/findable.rs`).

mod findable;

use super::Frames;
use super::call::CallContext;
use crate::addr::{Pfn, PfnRange};
use crate::frames::fast::FreeOutcome;
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES, count_ones, is_pageblocks};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::words::{
    Block, BlockState, FrameBitmap, LongShape, RunShape, SectionRef, Zeroed, bitmap_words_of,
};
use core::ops::Range;

const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;

impl<P: Platform> Frames<P> {
    /// Frees `range`. Callers inside the crate keep the promises of [`free_raw`](Self::free_raw).
    ///
    /// A range consists of frame numbers only, and does not say which [`Frames`] it belongs to. If
    /// it was allocated from another `Frames`, the call usually fails. But if frames with the same
    /// numbers are allocated from this one, the call frees them: the metadata stays consistent, but
    /// the owner of these frames has lost them.
    ///
    /// # Errors
    /// [`RangeError`] if a frame of `range` is not allocated. The call then frees nothing, except
    /// while other CPUs free or allocate the same frames:
    ///
    /// - If another CPU frees some of the frames at the same time, this call may free the frames
    ///   before them and then fail.
    /// - If two CPUs free the same whole pageblock, and a third one allocates it in between, both
    ///   frees may succeed.
    #[inline(never)]
    pub(crate) fn free_range(&self, range: PfnRange) -> Result<(), RangeError> {
        self.free_range_inlined(range)
    }

    /// Does the same as [`free_range`](Self::free_range), for callers that free often.
    #[inline(always)]
    pub(super) fn free_range_inlined(&self, range: PfnRange) -> Result<(), RangeError> {
        let freed = match range.frames() {
            1 => self.free_frame(range.start()),
            BLOCK if is_pageblocks(range) => self.free_block(range.start()),
            frames => match RunShape::bits_of(frames) {
                Some(run) => self.free_run(range.start(), run),
                None => match LongShape::new(frames, 1) {
                    Some(shape) => self.free_long_run(range.start(), shape),
                    None => FreeOutcome::NotFreed,
                },
            },
        };
        match freed {
            FreeOutcome::Freed => {}
            FreeOutcome::FreedLast => self.complete_last_free(range.start()),
            FreeOutcome::NotFreed => return self.free_slowly(range),
        }
        Ok(())
    }

    #[inline(never)]
    fn free_slowly(&self, range: PfnRange) -> Result<(), RangeError> {
        if range.frames() == 1 {
            self.call().free_frame_slowly(range)
        } else {
            self.call().free_by_pageblock(range, false)
        }
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Frees one frame that the fast path cannot free. The word of the frame in the bitmap is held
    /// or has a flag, or the bitmap is not a lasting one.
    fn free_frame_slowly(&self, frame: PfnRange) -> Result<(), RangeError> {
        let Some(block) = self.words().block_of(frame.start()) else {
            return Err(RangeError { range: frame, kind: RangeErrorKind::Foreign });
        };
        let offset = block.offset_of(frame.start());
        self.free_in(block, offset..offset + 1, frame)
    }

    pub(in crate::frames) fn free_by_pageblock(
        &self,
        range: PfnRange,
        is_zero: bool,
    ) -> Result<(), RangeError> {
        let refused = |range, kind| Err(RangeError { range, kind });
        if range.is_empty() {
            return refused(range, RangeErrorKind::Empty);
        }
        let Some(first) = self.words().block_of(range.start()) else {
            let block_range = range.chunks(PAGEBLOCK_FRAMES as u64).next();
            let block_range = block_range.filter(|_| self.words().covers(range));
            return refused(block_range.unwrap_or(range), RangeErrorKind::Foreign);
        };
        if range.frames() == PAGEBLOCK_FRAMES as u64 && is_pageblocks(range) {
            return self.free_pageblock(first, range, is_zero);
        }
        if !first.range().covers(range) && !self.words().covers(range) {
            return refused(range, RangeErrorKind::Foreign);
        }
        // Check the whole range before anything is written.
        self.check_allocated(range)?;
        // Gather the wholly freed pageblocks of a section, and publish them by one step.
        let mut unpublished = (first.section(), 0);
        for block_range in range.chunks(PAGEBLOCK_FRAMES as u64) {
            // `check_allocated` has checked that all sections have words.
            let Some(block) = self.words().block_of(block_range.start()).or_record_violation()
            else {
                continue;
            };
            let first = block.offset_of(block_range.start());
            #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
            let frames = first..first + block_range.frames() as usize;
            if unpublished.0 != block.section() {
                self.publish_freed(unpublished, is_zero);
                unpublished = (block.section(), 0);
            }
            let was_drained = if frames.len() == PAGEBLOCK_FRAMES {
                block.state().take_back_whole()
            } else {
                None
            };
            match was_drained {
                Some(true) => {} // its isolation token owns it now
                Some(false) => unpublished.1 |= block.mask(),
                None => {
                    // Publish the gathered pageblocks first, because the free below may fail and
                    // return.
                    self.publish_freed(unpublished, is_zero);
                    unpublished.1 = 0;
                    self.free_in(block, frames, block_range)?;
                }
            }
        }
        self.publish_freed(unpublished, is_zero);
        Ok(())
    }

    /// Checks that all of `range` is allocated. A concurrent free may make the result out of date.
    pub(super) fn check_allocated(&self, range: PfnRange) -> Result<(), RangeError> {
        let refused = |range, kind| Err(RangeError { range, kind });
        if range.is_empty() {
            return refused(range, RangeErrorKind::Empty);
        }
        for block_range in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let Some(block) = self.words().block_of(block_range.start()) else {
                return refused(block_range, RangeErrorKind::Foreign);
            };
            let first = block.offset_of(block_range.start());
            #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
            let frames = first..first + block_range.frames() as usize;
            if !self.is_allocated(block, frames, block_range) {
                return refused(block_range, refusal_reason(block));
            }
        }
        Ok(())
    }

    /// Frees a whole pageblock by one read-modify-write, and publishes it by another.
    fn free_pageblock(
        &self,
        block: Block<'_>,
        all: PfnRange,
        is_zero: bool,
    ) -> Result<(), RangeError> {
        if block.is_free() {
            return Err(RangeError { range: all, kind: refusal_reason(block) });
        }
        match block.state().take_back_whole() {
            // The pageblock is divided: check all of it before anything is written.
            None => {
                self.check_allocated(all)?;
                return self.free_in(block, 0..PAGEBLOCK_FRAMES, all);
            }
            Some(true) => {} // its isolation token owns it now
            Some(false) => {
                self.publish_freed((block.section(), block.mask()), is_zero);
            }
        }
        Ok(())
    }

    fn publish_freed(&self, (section, blocks): (SectionRef<'_>, u64), is_zero: bool) {
        if blocks != 0 {
            let zeroed = if is_zero { Zeroed::known(blocks) } else { Zeroed::NONE };
            self.put_back_blocks(section, blocks, zeroed);
        }
    }

    /// Frees `frames` of one pageblock.
    #[inline(never)]
    fn free_in(
        &self,
        block: Block<'_>,
        frames: Range<usize>,
        block_range: PfnRange,
    ) -> Result<(), RangeError> {
        let Some(state) = block.live_state() else {
            return Err(RangeError { range: block_range, kind: refusal_reason(block) });
        };
        if state.has_poison() {
            self.free_poisoned(block, frames, block_range)
        } else {
            self.free_run(block, frames, block_range)
        }
    }

    /// Frees `frames` of a pageblock that has poisoned frames. If some of `frames` are poisoned,
    /// the call does not free them, and they are never allocated again.
    #[cold]
    fn free_poisoned(
        &self,
        block: Block<'_>,
        frames: Range<usize>,
        block_range: PfnRange,
    ) -> Result<(), RangeError> {
        let refused = Err(RangeError { range: block_range, kind: refusal_reason(block) });
        let has_poison = block.live_state().is_some_and(BlockState::has_poison);
        // Check first: if the free is refused, its poisoned frames still have an owner, and must
        // not be taken out.
        if !has_poison || !self.is_allocated(block, frames.clone(), block_range) {
            return refused;
        }
        let Range { start, end } = frames;
        let mut from = start;
        for at in start..=end {
            let frame = block.start().checked_add(at as u64).filter(|_| at < end);
            match frame.map_or(Some(true), |frame| self.quarantine_if_poisoned(frame)) {
                None => return refused,
                Some(false) => continue,
                Some(true) if from < at => self.free_run(block, from..at, block_range)?,
                Some(true) => {}
            }
            from = at + 1;
        }
        Ok(())
    }

    /// Frees frames of a live pageblock. The caller must have checked that none of them is
    /// poisoned.
    fn free_run(
        &self,
        block: Block<'_>,
        frames: Range<usize>,
        block_range: PfnRange,
    ) -> Result<(), RangeError> {
        let refused = |range| Err(RangeError { range, kind: RangeErrorKind::NotAllocated });
        // If the pageblock has no bitmap, it was allocated as a whole, and is divided now. The last
        // of the freed frames may hold the bitmaps.
        let installed = self.bitmap_or_install(block, frames.clone());
        let Some((bitmap, bitmap_frames)) = installed else {
            return refused(block_range);
        };
        let frames = frames.start..bitmap_frames.start;
        block.note_freed_run(frames.len());
        let mut state = block.state().load();
        if state.is_whole() {
            let Some(before) = block.state().mark_partly_freed() else {
                return refused(block_range);
            };
            state = before;
        }
        let was_whole = state.is_whole() || state.is_partly_freed();
        let mut freed = Ok(());
        for (word, bits) in bitmap_words_of(frames) {
            if self.free_bits(block, bitmap, word, bits).is_none() {
                let range = range_of_bits(block.start(), word, bits).or_record_violation();
                freed = refused(range.unwrap_or(block_range));
                break;
            }
        }
        if was_whole {
            self.try_open_partly_freed(block, bitmap);
        }
        freed
    }

    /// Frees `bits` of one word of a live pageblock. Returns `None`, and changes nothing, if one of
    /// the frames is free already.
    pub(in crate::frames) fn free_bits(
        &self,
        block: Block<'_>,
        bitmap: &FrameBitmap,
        word: usize,
        bits: u64,
    ) -> Option<()> {
        let freed = bitmap.free_flagged(word, bits, || self.start_hiding())?;
        if !freed.was_partial() || freed.is_all_free_unflagged() {
            self.complete_bitmap_free(block, bitmap, word, freed);
        }
        Some(())
    }

    /// Frees again the frames of `bits` in one word. The caller must have just taken them.
    pub(super) fn put_back_bits(&self, block: Block<'_>, word: usize, bits: u64) {
        if let Some(bitmap) = self.bitmap_of(block).or_record_violation() {
            self.free_bits(block, bitmap, word, bits).or_record_violation();
        }
    }

    /// Returns whether all these frames are allocated. A concurrent free may make the result out of
    /// date.
    fn is_allocated(&self, block: Block<'_>, frames: Range<usize>, block_range: PfnRange) -> bool {
        let Some(state) = block.live_state() else { return false };
        if state.has_poison() && self.quarantined_in(block_range).next().is_some() {
            return false;
        }
        // A pageblock that was allocated as a whole may have no bitmap.
        self.bitmap_of(block).is_none_or(|bitmap| {
            bitmap_words_of(frames).all(|(word, bits)| bitmap.bits_in(word) & bits == 0)
        })
    }
}

/// Returns the reason why frames of `block` that are not allocated cannot be freed.
#[cold]
fn refusal_reason(block: Block<'_>) -> RangeErrorKind {
    let online = block.section().online.load(Ordering::Relaxed) & block.mask() != 0;
    if online { RangeErrorKind::NotAllocated } else { RangeErrorKind::Foreign }
}

/// Returns the frames of `bits` in word number `word` of the bitmap of the pageblock at `start`.
fn range_of_bits(start: Pfn, word: usize, bits: u64) -> Option<PfnRange> {
    let first = word * BITMAP_WORD_BITS + bits.trailing_zeros() as usize;
    PfnRange::with_len(start.checked_add(first as u64)?, count_ones(bits))
}
