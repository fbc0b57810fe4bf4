//! Defines owned allocations, and raw ranges for callers that keep track of their frames
//! themselves.
//!
//! Each allocated frame has one owner. An [`Allocation`] is a value that owns frames: it cannot be
//! copied, and dropping it frees the frames. A caller that keeps frame numbers in its own
//! structures (page tables, a device's queue) turns the allocation [into a raw
//! range](Allocation::into_raw). When it frees the range, it promises to be the owner of the
//! frames.

use super::{AllocError, AllocRequest, Frames};
use crate::addr::{Pfn, PfnRange};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::range_error::RangeError;
use core::fmt;
use core::mem::ManuallyDrop;

/// Allocated frames, and the right to use and to free them. Dropping the value frees the frames, at
/// the cost of [`Frames::free_raw`]. Frames that were poisoned since the allocation are quarantined
/// instead.
///
/// ```
/// # use hotmem::{AllocError, Frames, OneCpu, AllocRequest};
/// # fn with(frames: &Frames<OneCpu>) -> Result<(), AllocError> {
/// let eight = frames.alloc(AllocRequest::frames(8))?;
/// let middle = eight.range().chunks(3).nth(1).expect("8 frames").start();
/// let (three, five) = eight.split_at(middle);
/// assert_eq!((three.range().frames(), five.range().frames()), (3, 5));
/// drop(three);
/// // The owner of a raw range must free it.
/// let raw = five.into_raw();
/// // SAFETY: `raw` is the range of `five`; nobody uses its frames, and nobody else frees them.
/// unsafe { frames.free_raw(raw) }.expect("allocated");
/// # Ok(())
/// # }
/// ```
///
/// An allocation has one owner:
///
/// ```compile_fail,E0382
/// # use hotmem::{Allocation, OneCpu};
/// fn twice(page: Allocation<'_, OneCpu>) {
///     drop(page);
///     drop(page);
/// }
/// ```
/// ```compile_fail,E0599
/// # use hotmem::{Allocation, OneCpu};
/// fn copied<'f>(page: &Allocation<'f, OneCpu>) -> Allocation<'f, OneCpu> {
///     Allocation::clone(page)
/// }
/// ```
/// ```compile_fail,E0133
/// # use hotmem::{Frames, OneCpu, PfnRange};
/// fn by_number(frames: &Frames<OneCpu>, range: PfnRange) {
///     let _ = frames.free_raw(range);
/// }
/// ```
#[must_use = "dropping an allocation frees its frames"]
pub struct Allocation<'f, P: Platform> {
    frames: &'f Frames<P>,
    range: PfnRange,
}

impl<P: Platform> Frames<P> {
    /// Allocates the requested frames.
    ///
    /// Context: any. Calls no hook, holds no lock, never waits. Cost: 1 atomic read-modify-write
    /// for up to 32 frames from the CPU's hint, and 1 for a whole pageblock. A run of 33 to 256 frames
    /// takes 1 for each 32 frames or a part of them, and 2 more. If
    /// the hint has no suitable memory, a search costs a few loads for each level of the tree; the
    /// number of levels does not depend on the size of the machine. A request for 3 to 256 frames, or
    /// one that is aligned, may also look at each pageblock that has two neighbouring free frames but
    /// no suitable run: two cache lines for each. The contents of the memory are those that
    /// [`contents`](Self::contents) returns.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    #[inline(always)]
    pub fn alloc(&self, request: AllocRequest) -> Result<Allocation<'_, P>, AllocError> {
        self.alloc_range(request).map(|range| self.give(range))
    }

    /// Allocates as [`alloc`](Self::alloc) does. If that finds no memory, searches all memory within
    /// the bounds, and takes the lowest free run that suits the request, wherever the run begins. So
    /// if this says that no memory is left, no suitable run of this length is free. The second
    /// search takes low memory last. It does not prefer a node, but keeps to a node that the request
    /// [requires](crate::NodeChoice::Only). Like every allocation, the run lies in one region.
    ///
    /// Context: any. Calls no hook, holds no lock, never waits. Cost: that of [`alloc`](Self::alloc)
    /// if that succeeds. Otherwise O(sections) within the bounds, and two cache lines for each
    /// pageblock that is divided, up to 17 times while other CPUs allocate and free.
    ///
    /// # Errors
    /// [`AllocError`]. The failed call changed nothing.
    pub fn alloc_contiguous(&self, request: AllocRequest) -> Result<Allocation<'_, P>, AllocError> {
        let range = match self.alloc_range(request) {
            Err(AllocError::OutOfMemory | AllocError::Busy) => self.alloc_run_anywhere(&request),
            result => result,
        }?;
        Ok(self.give(range))
    }

    /// Makes a caller the owner of `range`, which was allocated for it.
    #[inline(always)]
    pub(super) fn give(&self, range: PfnRange) -> Allocation<'_, P> {
        self.count_allocated(range.frames());
        Allocation { frames: self, range }
    }

    /// Frees `range`, which may be a part of an allocation, or span several allocations.
    ///
    /// Context: any. Calls no hook, holds no lock, never waits. Cost: 1 atomic read-modify-write
    /// for the frames in a word of a bitmap (32 frames), and 2 more if they are of several words; 1 for
    /// one whole pageblock; for several whole pageblocks, 1 per pageblock and 1 per section.
    ///
    /// # Safety
    /// The caller owns each allocated frame of `range`: by [`Allocation::into_raw`], or because the
    /// boot map listed the frame as reserved. Nobody uses these frames any more. Frames of `range`
    /// that are not allocated, or that belong to no memory of this instance, do not make the call
    /// unsound: the call fails.
    ///
    /// # Errors
    /// [`RangeError`] if a frame of `range` is not allocated. The call then frees nothing, with one
    /// exception: if other calls free the same frames at the same time, the call may free a part
    /// before it fails. Two calls that free the same whole pageblock at the same time may both
    /// succeed: the second one frees it if it was allocated again after the first one.
    #[inline]
    pub unsafe fn free_raw(&self, range: PfnRange) -> Result<(), RangeError> {
        if P::COUNTS_ALLOCATED {
            return self.free_and_count(range, Frames::free_range);
        }
        self.free_range_inlined(range)
    }

    /// Frees `range` as [`free_raw`](Self::free_raw) does, after filling it with the
    /// [contents](crate::Contents) of free memory. For a caller that does not know what the frames
    /// contain.
    ///
    /// Context: any. Cost: that of [`free_raw`](Self::free_raw). If free memory has defined
    /// contents, the call also checks each pageblock, and writes every word of the frames.
    ///
    /// # Safety
    /// The same as for [`free_raw`](Self::free_raw).
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw). Nothing is written if a frame is not allocated.
    pub unsafe fn fill_and_free_raw(&self, range: PfnRange) -> Result<(), RangeError> {
        self.free_and_count(range, |frames, range| frames.call().fill_and_free(range))
    }
}

impl<'f, P: Platform> Allocation<'f, P> {
    /// Returns the frames.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// Splits the allocation into the frames below `pfn` and the frames at or above `pfn`. Either
    /// part may be empty.
    pub fn split_at(self, pfn: Pfn) -> (Allocation<'f, P>, Allocation<'f, P>) {
        let frames = self.frames;
        let (below, above) = self.into_raw().split_at(pfn);
        (Allocation { frames, range: below }, Allocation { frames, range: above })
    }

    /// Returns the range of the allocation and does not free it. The caller then owns the range by
    /// its own bookkeeping: [`Frames::free_raw`] frees the range or parts of it.
    #[inline]
    #[must_use = "the frames stay allocated until they are freed by number"]
    pub fn into_raw(self) -> PfnRange {
        ManuallyDrop::new(self).range
    }
}

impl<P: Platform> Drop for Allocation<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if !self.range.is_empty() {
            // The frames are allocated, and only this value may free them, so this cannot fail.
            self.frames.free_range_inlined(self.range).or_record_violation();
            self.frames.count_freed(self.range.frames());
        }
    }
}

impl<P: Platform> fmt::Debug for Allocation<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Allocation").field(&self.range).finish()
    }
}
