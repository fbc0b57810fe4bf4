//! Counts the frames that callers have allocated, if the platform asks for it.
//!
//! [`Frames::counts`] computes exact numbers of each state from the words, which takes longer the more
//! memory there is. A kernel that reports its free memory often needs an answer at once. Each call
//! that allocates or frees then adds to a count in the record of its CPU, by one more atomic
//! read-modify-write of a cache line that this CPU has. So the platform decides: without
//! [`Platform::COUNTS_ALLOCATED`], the code does not exist.
//!
//! Only what leaves the engine counts, which includes the frames for page tables that a request has
//! allocated for the mapping. What the engine allocates for itself are words, bitmaps and reserves.

use crate::addr::PfnRange;
use crate::frames::Frames;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::sync::Ordering;

impl<P: Platform> Frames<P> {
    /// Returns the number of frames that callers have: those that they allocated and did not free
    /// yet, and those that boot reserved. The online memory less these frames is free, or the engine
    /// uses it for words and bitmaps, or it holds descriptors of its own section, or it is poisoned.
    /// Returns `None` unless [`Platform::COUNTS_ALLOCATED`] is true.
    ///
    /// The number is exact while no call is in flight. A frame that a call is allocating or freeing
    /// may count or not.
    ///
    /// Context: any. Cost: one load for each CPU, and at least 8, however much memory there is.
    #[must_use]
    pub fn allocated_frames(&self) -> Option<u64> {
        // Relaxed: a snapshot.
        let counts = self.cpus.all().map(|cpu| cpu.allocated.load(Ordering::Relaxed));
        let sum = counts.fold(0, u64::wrapping_add);
        // A frame that one CPU allocates and another one frees, between the loads of their counts,
        // makes the sum too small.
        P::COUNTS_ALLOCATED.then_some(if sum.cast_signed() < 0 { 0 } else { sum })
    }

    /// Counts frames that a caller has allocated.
    #[inline(always)]
    pub(crate) fn count_allocated(&self, frames: u64) {
        if P::COUNTS_ALLOCATED {
            // Relaxed: the count orders nothing.
            self.cpu_inlined().allocated.fetch_add(frames, Ordering::Relaxed);
        }
    }

    /// Frees `range` by `free`, and counts it as freed by a caller if that succeeds.
    #[inline(always)]
    pub(in crate::frames) fn free_and_count(
        &self,
        range: PfnRange,
        free: fn(&Self, PfnRange) -> Result<(), RangeError>,
    ) -> Result<(), RangeError> {
        free(self, range)?;
        self.count_freed(range.frames());
        Ok(())
    }

    /// Counts frames that a caller has freed. Another CPU may have allocated them, so the count of
    /// one CPU may fall below 0 and wrap; only the sum is a number of frames.
    #[inline(always)]
    pub(crate) fn count_freed(&self, frames: u64) {
        if P::COUNTS_ALLOCATED {
            // Relaxed: the count orders nothing.
            self.cpu_inlined().allocated.fetch_sub(frames, Ordering::Relaxed);
        }
    }
}
