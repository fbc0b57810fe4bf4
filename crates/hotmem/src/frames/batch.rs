//! Allocates and frees many single frames in one call.
//!
//! One compare-exchange takes or frees the frames of a word of a bitmap (32 frames).

use super::{AllocError, AllocRequest, BadRequest, CallContext, Frames, Unit};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::BITMAP_WORD_BITS;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::range_error::RangeError;

impl<P: Platform> Frames<P> {
    /// Allocates single frames, each as `request` says, and writes their numbers to `frames`.
    /// `request` is for one frame. Returns the number of allocated frames. The number is less than
    /// the length of `frames` only if no more frames could be allocated. The caller owns each frame
    /// as if by [`Allocation::into_raw`](crate::Allocation::into_raw).
    ///
    /// Context: any. Cost: that of [`alloc`](Self::alloc) for the first frame of each pageblock,
    /// and 1 atomic read-modify-write for each 32 further frames. If the request names a place, a
    /// node or a bound, the cost of `alloc` for each frame.
    ///
    /// # Errors
    /// [`AllocError`] if no frame could be allocated; nothing has changed then.
    pub fn alloc_many(
        &self,
        request: AllocRequest,
        frames: &mut [Pfn],
    ) -> Result<usize, AllocError> {
        if request.frames > 1 {
            return Err(AllocError::Bad(BadRequest::NotSingle { frames: request.frames }));
        }
        let mut filled = 0;
        while let Some((first, remaining)) =
            frames.get_mut(filled..).and_then(<[Pfn]>::split_first_mut)
        {
            match self.alloc_range(request) {
                Ok(frame) => *first = frame.start(),
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            }
            filled += 1 + self.call().take_more_in_pageblock(*first, &request, remaining);
        }
        self.count_allocated(filled as u64);
        Ok(filled)
    }

    /// Frees single frames, in any order. Frames that follow each other in `frames` and lie in one
    /// word of a frame bitmap (32 frames) are freed together.
    ///
    /// Context: any. Cost: 1 atomic read-modify-write for frames that are freed together.
    ///
    /// # Safety
    /// The same as for [`free_raw`](Self::free_raw), for each frame.
    ///
    /// # Errors
    /// [`RangeError`] for the first frame that is not allocated. The call still frees all frames
    /// that are allocated.
    pub unsafe fn free_many(&self, frames: &[Pfn]) -> Result<(), RangeError> {
        let mut result = Ok(());
        let mut remaining = frames;
        while let Some(&first) = remaining.first() {
            let (len, bits) = count_in_same_word(first, remaining);
            let (run, after_run) = remaining.split_at(len);
            remaining = after_run;
            if self.call().free_word(first, bits) {
                self.count_freed(len as u64);
                continue;
            }
            // Free each frame alone, so that poisoned frames are quarantined and the error names
            // the frame.
            for &frame in run {
                let freed =
                    PfnRange::with_len(frame, 1).map_or(Ok(()), |one| self.free_range_inlined(one));
                if freed.is_ok() {
                    self.count_freed(1);
                }
                result = result.and(freed);
            }
        }
        result
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Takes frames for `frames` from the pageblock that `frame` was allocated from. Returns their
    /// number.
    fn take_more_in_pageblock(
        &self,
        frame: Pfn,
        request: &AllocRequest,
        frames: &mut [Pfn],
    ) -> usize {
        if request.unrestricted_unit() != Some(Unit::Frame) || frames.is_empty() {
            return 0;
        }
        // The pageblock keeps its zone and its node while a frame of it is allocated.
        let Some(block) = self.words().block_of(frame).or_record_violation() else { return 0 };
        let Some(bitmap) = self.bitmap_of(block) else { return 0 };
        let (start, mut places) = (block.start().number(), frames.iter_mut());
        bitmap.take_many(places.len(), |index| {
            if let (Some(place), Some(frame)) = (places.next(), Pfn::new(start + index as u64)) {
                *place = frame;
            }
        })
    }

    /// Frees the frames of `bits` in one word of a lasting bitmap, the word of the frame `first`.
    /// Returns false, and changes nothing, if one step cannot free them.
    pub(super) fn free_word(&self, first: Pfn, bits: u64) -> bool {
        let Some(block) = self.words().block_of(first) else { return false };
        let Some(bitmap) = block.lasting_bitmap() else { return false };
        let word = block.offset_of(first) / BITMAP_WORD_BITS;
        let Some(freed) = bitmap.free(word, bits, || self.start_hiding()) else { return false };
        if !freed.was_partial() || freed.is_all_free_unflagged() {
            self.complete_bitmap_free(block, bitmap, word, freed);
        }
        true
    }
}

/// Returns how many frames at the start of `frames` are distinct and lie in the same word of a
/// bitmap as `first`. Returns their bits as well.
fn count_in_same_word(first: Pfn, frames: &[Pfn]) -> (usize, u64) {
    const BITS: u64 = BITMAP_WORD_BITS as u64;
    let mut bits = 0;
    let in_word = |frame: &&Pfn| {
        let bit = 1 << (frame.number() % BITS);
        let is_new = frame.number() / BITS == first.number() / BITS && bits & bit == 0;
        bits |= if is_new { bit } else { 0 };
        is_new
    };
    (frames.iter().take_while(in_word).count(), bits)
}
