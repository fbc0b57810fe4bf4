//! Keeps single frames for one CPU or thread, which allocates and frees them without atomic
//! operations.

use core::fmt;
use hotmem::{AllocError, AllocRequest, Frames, Pfn, Platform};
use hotmem_invariant::OrRecordViolation;

/// A cache of up to `N` single frames. The kernel ensures that one caller at a time uses a magazine:
/// for example, it has one magazine for each CPU and uses it with preemption and interrupts off, or it
/// has one magazine for each thread. Most pairs of alloc and free cost no atomic operation.
///
/// Frames in a magazine count as allocated: they prevent the removal of their memory, and an
/// allocation from [`Frames`] can run out of memory while a magazine has frames. So a kernel
/// [drains](Self::drain) its magazines when the engine calls [`Platform::drain_magazines`]. An
/// interrupt handler that may interrupt a user of the magazine must call [`Frames`] directly.
///
/// ```
/// # use hotmem::{AllocError, AllocRequest, Frames, OneCpu};
/// # use hotmem_port::Magazine;
/// # fn with(frames: &Frames<OneCpu>) -> Result<(), AllocError> {
/// let mut magazine = Magazine::<_, 64>::new(frames, AllocRequest::frames(1));
/// let page = magazine.alloc()?;
/// // SAFETY: the frame was allocated from this magazine, and nothing uses it any more.
/// unsafe { magazine.free(page) };
/// # Ok(())
/// # }
/// ```
pub struct Magazine<'f, P: Platform, const N: usize> {
    frames: &'f Frames<P>,
    request: AllocRequest,
    /// The first `len` elements are the frames in the magazine.
    frames_held: [Pfn; N],
    len: usize,
}

impl<'f, P: Platform, const N: usize> Magazine<'f, P, N> {
    /// How many frames an empty magazine allocates at once, and how many frames a full magazine keeps
    /// when it frees the others. A half-full magazine needs no atomic operation for the next allocs
    /// and frees.
    const HALF: usize = {
        assert!(N >= 2, "a magazine must hold two frames or more");
        N / 2
    };

    /// Creates an empty magazine, whose frames are allocated as `request`, which is for one frame.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, request: AllocRequest) -> Magazine<'f, P, N> {
        Magazine { frames, request, frames_held: [Pfn::ZERO; N], len: 0 }
    }

    /// Allocates a frame. The caller owns it as a raw range: see
    /// [`Allocation::into_raw`](hotmem::Allocation::into_raw).
    ///
    /// Cost: no atomic operation while the magazine has frames. An empty magazine is refilled with up
    /// to `N / 2` frames by one [`Frames::alloc_many`].
    ///
    /// # Errors
    /// [`AllocError`] if the magazine is empty and no frame could be allocated.
    #[inline]
    pub fn alloc(&mut self) -> Result<Pfn, AllocError> {
        match self.take() {
            Some(frame) => Ok(frame),
            None => self.refill(),
        }
    }

    /// Frees a frame, which the next [`alloc`](Self::alloc) returns.
    ///
    /// Cost: no atomic operation while the magazine is not full. Half of a full magazine is freed by
    /// one [`Frames::free_many`].
    ///
    /// # Safety
    /// The caller owns the frame, which was allocated by this magazine or by a magazine with the same
    /// request and is not poisoned. Nothing uses the frame any more. A frame that is freed twice is
    /// noticed only in debug builds, or if the magazine later frees both entries in one call. If it is
    /// not noticed, the frame gets two owners.
    #[inline]
    pub unsafe fn free(&mut self, frame: Pfn) {
        if !self.put(frame) {
            self.free_half_and_put(frame);
        }
    }

    /// Frees all frames of the magazine. Returns whether there were any.
    pub fn drain(&mut self) -> bool {
        let had_frames = self.len > 0;
        self.free_all_but(0);
        had_frames
    }

    /// Takes a frame out of the magazine. Returns `None` if the magazine is empty.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Pfn> {
        let last = self.len.wrapping_sub(1);
        let frame = *self.frames_held.get(last)?;
        self.len = last;
        Some(frame)
    }

    /// Puts a frame of the caller into the magazine. Returns false if the magazine is full.
    #[inline(always)]
    pub(crate) fn put(&mut self, frame: Pfn) -> bool {
        debug_assert!(!self.frames_held[..self.len].contains(&frame), "{frame} is freed twice");
        let Some(slot) = self.frames_held.get_mut(self.len) else { return false };
        *slot = frame;
        self.len += 1;
        true
    }

    /// Refills an empty magazine, and takes one of its frames.
    #[cold]
    fn refill(&mut self) -> Result<Pfn, AllocError> {
        self.len = self.frames.alloc_many(self.request, &mut self.frames_held[..Self::HALF])?;
        // `alloc_many` allocates at least one frame if it succeeds.
        self.take().or_record_violation().ok_or(AllocError::OutOfMemory)
    }

    /// Frees half of the frames of a full magazine, and then puts a frame of the caller into it.
    #[cold]
    fn free_half_and_put(&mut self, frame: Pfn) {
        self.free_all_but(Self::HALF);
        self.put(frame).then_some(()).or_record_violation();
    }

    /// Frees all frames of the magazine except the `kept_frames` that were put into it last.
    #[cold]
    fn free_all_but(&mut self, kept_frames: usize) {
        let count = self.len.saturating_sub(kept_frames);
        // Sort the frames, because `free_many` frees neighbours together.
        self.frames_held[..count].sort_unstable();
        // SAFETY: by the contract of `free`, the magazine owns these frames, and nothing uses them.
        unsafe { self.frames.free_many(&self.frames_held[..count]) }.or_record_violation();
        self.frames_held.copy_within(count..self.len, 0);
        self.len -= count;
    }
}

impl<P: Platform, const N: usize> Drop for Magazine<'_, P, N> {
    fn drop(&mut self) {
        self.drain();
    }
}

impl<P: Platform, const N: usize> fmt::Debug for Magazine<'_, P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Magazine").field("len", &self.len).finish_non_exhaustive()
    }
}
