//! Repeats an allocation while it returns [`AllocError::Busy`], for kernels without such an error.

use core::hint::spin_loop;
use hotmem::{AllocError, AllocRequest, Allocation, Frames, Platform};

/// How often an allocation is tried before [`AllocError::Busy`] is reported as a lack of memory.
/// [`Frames::alloc`] itself searches several times before it returns `Busy`. So all tries fail only
/// if another CPU is stopped for a long time in the middle of a step.
const TRIES: u32 = 64;

/// Allocates for kernels whose interface has one error only: no memory.
pub trait AllocOrNone<P: Platform> {
    /// Allocates as [`Frames::alloc`] does, and tries again up to 64 times while it returns
    /// [`AllocError::Busy`]. Returns `None` for every other error, and if all tries fail.
    ///
    /// Context: any. Cost: that of [`Frames::alloc`], up to 64 times if nearly all memory is in
    /// use.
    fn alloc_or_none(&self, request: AllocRequest) -> Option<Allocation<'_, P>>;
}

impl<P: Platform> AllocOrNone<P> for Frames<P> {
    #[inline]
    fn alloc_or_none(&self, request: AllocRequest) -> Option<Allocation<'_, P>> {
        match self.alloc(request) {
            Ok(allocation) => Some(allocation),
            Err(AllocError::Busy) => retry(self, request),
            Err(_) => None,
        }
    }
}

#[cold]
fn retry<P: Platform>(frames: &Frames<P>, request: AllocRequest) -> Option<Allocation<'_, P>> {
    for _ in 1..TRIES {
        spin_loop();
        match frames.alloc(request) {
            Ok(allocation) => return Some(allocation),
            Err(AllocError::Busy) => {}
            Err(_) => return None,
        }
    }
    None
}
