//! Passes frames for page tables to the kernel's own allocator.

use crate::linear::LinearMap;
use core::fmt;
use hotmem::{Frames, Known, Pfn, PfnRange, Platform};

/// Frames for page tables, which the kernel's own allocator returns while the kernel's code maps
/// memory for the engine. So [`Mapping::map`](hotmem::Mapping::map) cannot run out of frames,
/// although the code allocates from the kernel's allocator.
///
/// The kernel keeps this behind a lock, [fills](Self::fill) it before it maps, [takes](Self::take)
/// page tables from it, and [frees the rest](Self::free_rest) afterwards. Frames are linked through
/// their first bytes, so there may be any number.
pub struct LentFrames<'f, P> {
    frames: &'f Frames<P>,
    map: LinearMap,
    /// The first frame. Its first bytes are the number of the next frame, or `NONE`.
    first: Option<Pfn>,
}

const NONE: u64 = u64::MAX;

impl<'f, P: Platform> LentFrames<'f, P> {
    /// Makes an empty list for a machine whose memory is mapped by `map`.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, map: LinearMap) -> LentFrames<'f, P> {
        LentFrames { frames, map, first: None }
    }

    /// Adds all frames that `take` yields.
    ///
    /// # Safety
    /// The frames were allocated from this machine, are mapped by `map`, and are not used
    /// elsewhere.
    pub unsafe fn fill(&mut self, take: &mut dyn FnMut() -> Option<Pfn>) {
        while let Some(frame) = take() {
            // SAFETY: by the caller's promise. A frame is aligned.
            unsafe { self.link(frame).write(self.first.map_or(NONE, Pfn::number)) };
            self.first = Some(frame);
        }
    }

    /// Removes a frame, which belongs to the caller from now on.
    pub fn take(&mut self) -> Option<Pfn> {
        let frame = self.first?;
        // SAFETY: by the promise to `fill`, which has written these bytes.
        self.first = Pfn::new(unsafe { self.link(frame).read() });
        Some(frame)
    }

    /// Frees the remaining frames. Returns their number.
    ///
    /// The engine refuses only a frame that [`fill`](Self::fill) should not have got. That is a
    /// [violated invariant](hotmem::violated_invariants), and the frame does not count.
    pub fn free_rest(&mut self) -> u64 {
        let mut freed = 0;
        while let Some(frame) = self.take() {
            let range = PfnRange::with_len(frame, 1).known().unwrap_or(PfnRange::EMPTY);
            // SAFETY: by the promise to `fill`: the frame was allocated, and `take` has not
            // returned it to anybody else.
            freed += u64::from(unsafe { self.frames.free_raw(range) }.known().is_some());
        }
        freed
    }

    fn link(&self, frame: Pfn) -> *mut u64 {
        self.map.pointer(frame).cast()
    }
}

impl<P> fmt::Debug for LentFrames<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentFrames").field("first", &self.first).finish_non_exhaustive()
    }
}
