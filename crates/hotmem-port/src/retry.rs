//! Repeats an allocation while it returns [`AllocError::Busy`].

use core::hint::spin_loop;
use hotmem::{AllocError, AllocRequest, Allocation, Frames, Platform};

/// How often an allocation is tried before it returns [`AllocError::Busy`]. [`Frames::alloc`] itself
/// searches several times before it returns `Busy`. So all tries fail only if another CPU is stopped
/// for a long time in the middle of a step.
const TRIES: u32 = 64;

/// Allocates for kernels whose callers cannot try again later.
pub trait AllocRetry<P: Platform> {
    /// Allocates as [`Frames::alloc`] does, and tries again up to 64 times while it returns
    /// [`AllocError::Busy`].
    ///
    /// Context: any. Cost: that of [`Frames::alloc`], up to 64 times if nearly all memory is in
    /// use.
    ///
    /// # Errors
    /// The error of the last try. A kernel whose own interface has only the error "no memory" can
    /// drop it by [`Result::ok`]. Another kernel can tell a wrong request from a lack of memory.
    fn alloc_retry(&self, request: AllocRequest) -> Result<Allocation<'_, P>, AllocError>;
}

impl<P: Platform> AllocRetry<P> for Frames<P> {
    #[inline]
    fn alloc_retry(&self, request: AllocRequest) -> Result<Allocation<'_, P>, AllocError> {
        match self.alloc(request) {
            Err(AllocError::Busy) => retry(self, request),
            result => result,
        }
    }
}

#[cold]
fn retry<P: Platform>(
    frames: &Frames<P>,
    request: AllocRequest,
) -> Result<Allocation<'_, P>, AllocError> {
    for _ in 1..TRIES {
        spin_loop();
        match frames.alloc(request) {
            Err(AllocError::Busy) => {}
            result => return result,
        }
    }
    Err(AllocError::Busy)
}
