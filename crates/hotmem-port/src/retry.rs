//! Allocation for interfaces that know two answers.

use core::hint::spin_loop;
use hotmem::{AllocError, AllocRequest, Allocation, Frames, Platform};

/// How often an allocation is tried before [`AllocError::Busy`] is taken for a lack of memory.
/// [`Frames::alloc`] searches several times by itself before it gives this answer, so that this many
/// are over only if a CPU was stopped in the middle of a step for long.
const TRIES: u32 = 64;

/// Allocation for kernels whose interface has one way to fail.
pub trait AllocOrNone<P: Platform> {
    /// Allocates as [`Frames::alloc`] does, and tries again a bounded number of times where other
    /// CPUs are in the middle of a step. `None`: there is no such memory, there was none for as
    /// long as this tried, or nobody could have such memory.
    ///
    /// Context: any. Cost: that of [`Frames::alloc`], up to 64 times where memory is nearly all in
    /// use.
    fn alloc_or_none(&self, request: AllocRequest) -> Option<Allocation<'_, P>>;
}

impl<P: Platform> AllocOrNone<P> for Frames<P> {
    #[inline]
    fn alloc_or_none(&self, request: AllocRequest) -> Option<Allocation<'_, P>> {
        match self.alloc(request) {
            Ok(allocation) => Some(allocation),
            Err(AllocError::Busy) => again(self, request),
            Err(_) => None,
        }
    }
}

#[cold]
fn again<P: Platform>(frames: &Frames<P>, request: AllocRequest) -> Option<Allocation<'_, P>> {
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
