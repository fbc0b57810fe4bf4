//! Keeps single frames for one CPU or thread, which uses them without atomic operations.

use core::fmt;
use hotmem::{AllocError, AllocRequest, Frames, Known, Pfn, Platform};

/// A cache of up to `N` single frames, for a kernel that excludes other users already: one magazine
/// for each CPU, used with preemption and interrupts off, or one for each thread. Most pairs of
/// alloc and free cost no atomic operation.
///
/// Frames in a magazine count as allocated: they prevent the removal of their memory, and an
/// allocation elsewhere can run out of memory while a magazine has frames. So a kernel with
/// magazines [drains](Self::drain) them when the engine calls
/// [`Platform::drain_magazines`]. An interrupt handler that may
/// interrupt a user of the magazine must call [`Frames`] directly.
///
/// ```
/// # use hotmem::{AllocError, AllocRequest, Frames, OneCpu};
/// # use hotmem_port::Magazine;
/// # fn with(frames: &Frames<OneCpu>) -> Result<(), AllocError> {
/// let mut magazine = Magazine::<_, 64>::new(frames, AllocRequest::frames(1));
/// let page = magazine.alloc()?;
/// // SAFETY: the frame came from this magazine, and nobody uses it any more.
/// unsafe { magazine.free(page) };
/// # Ok(())
/// # }
/// ```
pub struct Magazine<'f, P: Platform, const N: usize> {
    frames: &'f Frames<P>,
    request: AllocRequest,
    held: [Pfn; N],
    len: usize,
}

impl<'f, P: Platform, const N: usize> Magazine<'f, P, N> {
    /// How many frames an empty magazine allocates at once, and how many a full one keeps when it
    /// frees the others. So the next pairs of alloc and free cost no atomic operation.
    const HALF: usize = {
        assert!(N >= 2, "a magazine has room for two frames or more");
        N / 2
    };

    /// Creates an empty magazine, whose frames are allocated as `request`, which is for one frame.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, request: AllocRequest) -> Magazine<'f, P, N> {
        Magazine { frames, request, held: [Pfn::ZERO; N], len: 0 }
    }

    /// Allocates a frame. The caller owns it as a raw range: see
    /// [`Allocation::into_raw`](hotmem::Allocation::into_raw).
    ///
    /// Cost: no atomic operation while the magazine has frames. An empty one is refilled with up to
    /// `N / 2` frames by one [`Frames::alloc_many`].
    ///
    /// # Errors
    /// [`AllocError`]: the magazine is empty, and no frame could be allocated.
    #[inline]
    pub fn alloc(&mut self) -> Result<Pfn, AllocError> {
        match self.take() {
            Some(frame) => Ok(frame),
            None => self.refill(),
        }
    }

    /// Frees a frame, which the next [`alloc`](Self::alloc) returns.
    ///
    /// Cost: no atomic operation while the magazine has room. Half of a full one is freed by
    /// one [`Frames::free_many`].
    ///
    /// # Safety
    /// The frame belongs to the caller, was allocated by the magazine's own request or by a
    /// magazine of the same request, and is not poisoned; nobody uses it any more. A frame that is
    /// freed twice is noticed only in debug builds, or when both are freed from the magazine at
    /// once; otherwise it gets two owners.
    #[inline]
    pub unsafe fn free(&mut self, frame: Pfn) {
        if !self.keep(frame) {
            self.free_half_and_keep(frame);
        }
    }

    /// Frees all frames of the magazine. Returns whether there were any.
    pub fn drain(&mut self) -> bool {
        let any = self.len > 0;
        self.give_back(0);
        any
    }

    /// Takes a frame out of the magazine, unless that is empty.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Pfn> {
        let last = self.len.wrapping_sub(1);
        let frame = *self.held.get(last)?;
        self.len = last;
        Some(frame)
    }

    /// Puts a frame of the caller into the magazine. Returns false if that is full.
    #[inline(always)]
    pub(crate) fn keep(&mut self, frame: Pfn) -> bool {
        debug_assert!(!self.held[..self.len].contains(&frame), "{frame} is freed twice");
        let Some(place) = self.held.get_mut(self.len) else { return false };
        *place = frame;
        self.len += 1;
        true
    }

    /// Refills an empty magazine, and takes one of its frames.
    #[cold]
    fn refill(&mut self) -> Result<Pfn, AllocError> {
        self.len = self.frames.alloc_many(self.request, &mut self.held[..Self::HALF])?;
        // A refill brings at least one frame.
        self.take().known().ok_or(AllocError::OutOfMemory)
    }

    /// Frees half of a full magazine, and keeps a frame of the caller.
    #[cold]
    fn free_half_and_keep(&mut self, frame: Pfn) {
        self.give_back(Self::HALF);
        self.keep(frame).then_some(()).known();
    }

    /// Frees all frames but the `keep` that were freed last.
    #[cold]
    fn give_back(&mut self, keep: usize) {
        let out = self.len.saturating_sub(keep);
        // Sorted, so that neighbours are freed together.
        self.held[..out].sort_unstable();
        // SAFETY: the magazine owns them, by the contract of `free`.
        unsafe { self.frames.free_many(&self.held[..out]) }.known();
        self.held.copy_within(out..self.len, 0);
        self.len -= out;
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
