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
        if self.len == 0 {
            self.refill()?;
        }
        // The magazine is not empty: a refill brings at least one frame.
        self.len -= 1;
        Ok(self.held[self.len])
    }

    /// Frees a frame, which the next [`alloc`](Self::alloc) returns.
    ///
    /// Cost: no atomic operation while the magazine has room. Half of a full one is freed by
    /// one [`Frames::free_many`].
    ///
    /// # Safety
    /// The frame belongs to the caller, was allocated by the magazine's own request or by a
    /// magazine of the same request, and is not poisoned; nobody uses it any more.
    #[inline]
    pub unsafe fn free(&mut self, frame: Pfn) {
        if self.len == N {
            self.give_back(Self::HALF);
        }
        self.held[self.len] = frame;
        self.len += 1;
    }

    /// Frees all frames of the magazine.
    pub fn drain(&mut self) {
        self.give_back(0);
    }

    #[cold]
    fn refill(&mut self) -> Result<(), AllocError> {
        self.len = self.frames.alloc_many(self.request, &mut self.held[..Self::HALF])?;
        Ok(())
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
