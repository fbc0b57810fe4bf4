//! Frames that a mapping lends to its kernel's own allocator.

use crate::linear::LinearMap;
use core::fmt;
use hotmem::{Frames, Pfn, PfnRange, Platform};

/// Frames for page tables, from which a kernel's own allocator is served while the kernel maps
/// memory by its own code. So [`Mapping::map`](hotmem::Mapping::map) cannot run out of frames,
/// although the code that maps asks the kernel's allocator and not the engine.
///
/// The kernel keeps one behind a lock of its own, [fills](Self::fill) it before it maps, serves page
/// tables from it [frame by frame](Self::take), and [frees the rest](Self::free_rest) afterwards.
/// Frames are linked through their own first bytes, so that there may be any number.
pub struct LentFrames<'f, P> {
    frames: &'f Frames<P>,
    map: LinearMap,
    /// The first frame, whose first bytes name the next by its number, or are `NONE`.
    first: Option<Pfn>,
}

const NONE: u64 = u64::MAX;

impl<'f, P: Platform> LentFrames<'f, P> {
    /// None yet, of a machine whose memory is mapped like this.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, map: LinearMap) -> LentFrames<'f, P> {
        LentFrames { frames, map, first: None }
    }

    /// Takes all frames that `take` yields.
    ///
    /// # Safety
    /// The frames were allocated from this machine, are mapped as it was said, and are used by
    /// nobody else.
    pub unsafe fn fill(&mut self, take: &mut dyn FnMut() -> Option<Pfn>) {
        while let Some(frame) = take() {
            // SAFETY: mapped and ours by the caller's promise; a frame is aligned.
            unsafe { self.link(frame).write(self.first.map_or(NONE, Pfn::number)) };
            self.first = Some(frame);
        }
    }

    /// Takes one of the frames out, which is the caller's from then on.
    pub fn take(&mut self) -> Option<Pfn> {
        let frame = self.first?;
        // SAFETY: `fill` was promised that the frame is mapped and ours, and has written this.
        self.first = Pfn::new(unsafe { self.link(frame).read() });
        Some(frame)
    }

    /// Frees what is left, and returns how many frames that was.
    pub fn free_rest(&mut self) -> u64 {
        let mut freed = 0;
        while let Some(frame) = self.take() {
            if let Some(range) = PfnRange::with_len(frame, 1) {
                // SAFETY: it was given to `fill`, and nobody has it.
                freed += u64::from(unsafe { self.frames.free_raw(range) }.is_ok());
            }
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
