//! Frames at hand for somebody who is alone with them.

use crate::addr::Pfn;
use crate::frames::{AllocError, AllocRequest, Frames};
use crate::known::Known;
use crate::platform::Platform;
use core::fmt;

/// Up to `N` single frames at hand, for a kernel that has exclusion already: one for each CPU, used
/// with preemption and interrupts off, or one for each thread. Most pairs of alloc and free cost no
/// atomic operation.
///
/// What is in a magazine is allocated: it hinders the removal of its memory, and an allocation
/// elsewhere can run out while a magazine has frames. So a kernel with magazines
/// [drains](Self::drain) them when the engine asks for it
/// ([`Platform::drain_magazines`](crate::Platform::drain_magazines)). Interrupt handlers that may
/// find the magazine in use call [`Frames`] directly.
///
/// ```
/// # use hotmem::{AllocError, AllocRequest, Frames, Magazine, OneCpu};
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
    /// Frames that come and go at once when it is empty or full, so that a few pairs more at that
    /// point cost nothing.
    const HALF: usize = {
        assert!(N >= 2, "a magazine has room for two frames or more");
        N / 2
    };

    /// An empty magazine of frames that are allocated as `request`, which is for one frame.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, request: AllocRequest) -> Magazine<'f, P, N> {
        Magazine { frames, request, held: [Pfn::ZERO; N], len: 0 }
    }

    /// Allocates a frame. The caller owns it as by
    /// [`Allocation::into_raw`](crate::Allocation::into_raw).
    ///
    /// Cost: no atomic operation, but for every `N / 2` calls that find it empty one
    /// [`Frames::alloc_many`].
    ///
    /// # Errors
    /// [`AllocError`]: the magazine is empty, and no frame could be had.
    #[inline]
    pub fn alloc(&mut self) -> Result<Pfn, AllocError> {
        if self.len == 0 {
            self.refill()?;
        }
        // Not empty: a refill brings at least one.
        self.len -= 1;
        Ok(self.held[self.len])
    }

    /// Frees a frame: it is the next that [`alloc`](Self::alloc) returns.
    ///
    /// Cost: no atomic operation, but for every `N / 2` calls that find it full one
    /// [`Frames::free_many`].
    ///
    /// # Safety
    /// The frame belongs to the caller, was allocated as the magazine's own request or by a
    /// magazine of the same request, is not poisoned, and nobody uses it any more.
    #[inline]
    pub unsafe fn free(&mut self, frame: Pfn) {
        if self.len == N {
            self.give_back(Self::HALF);
        }
        self.held[self.len] = frame;
        self.len += 1;
    }

    /// Frees all that is in it.
    pub fn drain(&mut self) {
        self.give_back(0);
    }

    #[cold]
    fn refill(&mut self) -> Result<(), AllocError> {
        self.len = self.frames.alloc_many(self.request, &mut self.held[..Self::HALF])?;
        Ok(())
    }

    /// Frees all but the `keep` that were freed last.
    #[cold]
    fn give_back(&mut self, keep: usize) {
        let out = self.len.saturating_sub(keep);
        // Neighbours are freed together.
        self.held[..out].sort_unstable();
        // The magazine owns them, by the promise of `free`.
        self.frames.free_frames(&self.held[..out]).known();
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
