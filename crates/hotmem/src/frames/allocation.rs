//! Defines owned allocations, and raw ranges for callers that keep track of their frames
//! themselves.
//!
//! Frames have one owner. An [`Allocation`] is that owner as a value: it cannot be copied, and its
//! drop frees the frames. A caller that keeps frame numbers in its own structures (page tables, a
//! device's queue) turns the allocation [into a raw range](Allocation::into_raw), and promises to
//! be the owner when it frees the range.

use super::{AllocError, AllocRequest, Frames};
use crate::addr::{Pfn, PfnRange};
use crate::known::Known;
use crate::platform::Platform;
use crate::range_error::RangeError;
use core::fmt;
use core::mem::ManuallyDrop;

/// Allocated frames, and the right to use and to free them. Dropping the value frees the frames,
/// at the cost of [`Frames::free_raw`]; frames that were poisoned since the allocation stay out of
/// use.
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
/// // SAFETY: the frames are those of `five`, which nobody uses and nobody frees any more.
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
#[must_use = "dropping it frees its frames"]
pub struct Allocation<'f, P: Platform> {
    frames: &'f Frames<P>,
    range: PfnRange,
}

impl<P: Platform> Frames<P> {
    /// Allocates the requested frames.
    ///
    /// Context: any. Calls no hook, holds no lock, never waits. Cost: 1 atomic read-modify-write
    /// for up to 32 frames from the CPU's own pageblock (2 for up to 64), 1 for a whole pageblock.
    /// A search costs a few loads per level of the tree, whatever the size of the machine. The
    /// contents of the memory are undefined.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    #[inline(always)]
    pub fn alloc(&self, request: AllocRequest) -> Result<Allocation<'_, P>, AllocError> {
        self.alloc_range(request).map(|range| Allocation { frames: self, range })
    }

    /// Frees `range`: all or any part of one or of several allocations.
    ///
    /// Context: any. Calls no hook, holds no lock, never waits. Cost: 1 atomic read-modify-write
    /// for the frames in a word of a bitmap (32 frames); for whole pageblocks, 1 per pageblock and
    /// 1 per section.
    ///
    /// # Safety
    /// The caller owns each frame of `range` that is allocated, by [`Allocation::into_raw`] or
    /// because the boot map listed it as reserved, and nobody uses it any more. A frame that is not
    /// allocated, or is no memory of this machine, is no violation: the call fails.
    ///
    /// # Errors
    /// [`RangeError`] if a frame of `range` is not allocated, detected before anything is freed. A
    /// double free that races with other frees of the same frames is detected after a part was
    /// freed.
    #[inline]
    pub unsafe fn free_raw(&self, range: PfnRange) -> Result<(), RangeError> {
        self.free_range(range)
    }

    /// Frees `range` as [`free_raw`](Self::free_raw) does, after filling it with the
    /// [contents](crate::Contents) of free memory. This is for a caller that does not know what the
    /// frames hold.
    ///
    /// Context: any. Cost: the cost of the free, a check of each pageblock, and a write of each
    /// word if free memory has defined contents.
    ///
    /// # Safety
    /// As for [`free_raw`](Self::free_raw).
    ///
    /// # Errors
    /// As for [`free_raw`](Self::free_raw); nothing is written if a frame is not allocated.
    pub unsafe fn free_raw_filled(&self, range: PfnRange) -> Result<(), RangeError> {
        self.free_filled(range)
    }

    /// Makes an owned allocation from a raw range.
    ///
    /// # Safety
    /// All frames of `range` are allocated from this machine and lie within one region. The caller
    /// owns them, and passes the ownership to the result.
    pub unsafe fn adopt(&self, range: PfnRange) -> Allocation<'_, P> {
        Allocation { frames: self, range }
    }
}

impl<'f, P: Platform> Allocation<'f, P> {
    /// Returns the frames.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// Returns the first frame.
    #[must_use]
    pub fn start(&self) -> Pfn {
        self.range.start()
    }

    /// Splits the allocation into the frames below `pfn` and those from `pfn` up. Either part may
    /// be empty.
    pub fn split_at(self, pfn: Pfn) -> (Allocation<'f, P>, Allocation<'f, P>) {
        let frames = self.frames;
        let (below, above) = self.into_raw().split_at(pfn);
        (Allocation { frames, range: below }, Allocation { frames, range: above })
    }

    /// Joins the allocation with `other`, which must be adjacent to it, below or above.
    ///
    /// # Errors
    /// Returns both allocations if they are not adjacent, or not of one region of one machine.
    pub fn join(
        self,
        other: Allocation<'f, P>,
    ) -> Result<Allocation<'f, P>, (Allocation<'f, P>, Allocation<'f, P>)> {
        let (below, above) = if other.start() < self.start() {
            (other.range, self.range)
        } else {
            (self.range, other.range)
        };
        let whole = if below.is_empty() {
            Some(above)
        } else if above.is_empty() {
            Some(below)
        } else if below.end() == above.start() {
            PfnRange::new(below.start(), above.end()).filter(|&all| self.frames.is_one_region(all))
        } else {
            None
        };
        match whole.filter(|_| core::ptr::eq(self.frames, other.frames)) {
            Some(range) => {
                let frames = self.frames;
                // The result owns the frames of both.
                let _ = (self.into_raw(), other.into_raw());
                Ok(Allocation { frames, range })
            }
            None => Err((self, other)),
        }
    }

    /// Gives up ownership without freeing. [`Frames::free_raw`] frees the range or parts of it, and
    /// [`Frames::adopt`] makes an allocation from it again.
    #[inline]
    #[must_use = "the frames stay allocated until they are freed by number"]
    pub fn into_raw(self) -> PfnRange {
        ManuallyDrop::new(self).range
    }
}

impl<P: Platform> Frames<P> {
    /// Returns whether `range` lies within one region, as every allocation does.
    fn is_one_region(&self, range: PfnRange) -> bool {
        self.words.covers(range)
    }
}

impl<P: Platform> Drop for Allocation<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if !self.range.is_empty() {
            // The frames are allocated: only this value may free them.
            self.frames.free_range(self.range).known();
        }
    }
}

impl<P: Platform> fmt::Debug for Allocation<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Allocation").field(&self.range).finish()
    }
}
