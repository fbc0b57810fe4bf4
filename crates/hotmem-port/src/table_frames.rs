//! Passes frames for page tables to the kernel's own allocator.

use crate::linear::LinearMap;
use core::fmt;
use hotmem::{Frames, Pfn, PfnRange, Platform};
use hotmem_invariant::OrRecordViolation;

/// A list of frames for page tables. The kernel's own allocator returns these frames while the
/// kernel's code maps memory for the engine. So [`Map::map`](hotmem::Map::map) cannot run out
/// of frames, although the kernel's code allocates page tables from the kernel's allocator.
///
/// The kernel keeps the list behind a lock. It [adds frames](Self::add_frames) to the list before it
/// maps memory, [takes](Self::take) page tables from the list, and
/// [frees the rest](Self::free_rest) afterwards. The list may have any length, because frames are
/// linked through their first bytes.
pub struct TableFrames<'f, P> {
    frames: &'f Frames<P>,
    map: LinearMap,
    /// The first frame of the list. The first 8 bytes of each frame are the number of the next frame,
    /// or `NO_FRAME` in the last one.
    first_free: Option<Pfn>,
}

/// A number that no frame has.
const NO_FRAME: u64 = u64::MAX;

impl<'f, P: Platform> TableFrames<'f, P> {
    /// Makes an empty list for an instance whose memory is mapped by `map`.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, map: LinearMap) -> TableFrames<'f, P> {
        TableFrames { frames, map, first_free: None }
    }

    /// Adds all frames that `take` returns.
    ///
    /// # Safety
    /// The frames were allocated from this instance, the linear map of this list maps them, and
    /// nothing else uses them.
    pub unsafe fn add_frames(&mut self, take: &mut dyn FnMut() -> Option<Pfn>) {
        while let Some(frame) = take() {
            // SAFETY: by the caller's promise. The start of a frame is aligned to 8 bytes.
            unsafe { self.link(frame).write(self.first_free.map_or(NO_FRAME, Pfn::number)) };
            self.first_free = Some(frame);
        }
    }

    /// Removes a frame from the list. The caller owns the frame from now on. Returns `None` if the
    /// list is empty.
    pub fn take(&mut self) -> Option<Pfn> {
        let frame = self.first_free?;
        // SAFETY: by the promise to `add_frames`, which has written the link of this frame.
        self.first_free = Pfn::new(unsafe { self.link(frame).read() });
        Some(frame)
    }

    /// Frees the remaining frames. Returns how many were freed.
    ///
    /// The engine refuses a frame only if the caller of [`add_frames`](Self::add_frames) has broken
    /// its promise. Such a frame is a [violated invariant](hotmem::violated_invariants), and is not
    /// counted as freed.
    pub fn free_rest(&mut self) -> u64 {
        let mut freed = 0;
        while let Some(frame) = self.take() {
            let range =
                PfnRange::with_len(frame, 1).or_record_violation().unwrap_or(PfnRange::EMPTY);
            // SAFETY: by the promise to `add_frames`, the frame was allocated. `take` has removed the
            // frame from the list, so nothing else owns it.
            freed +=
                u64::from(unsafe { self.frames.free_raw(range) }.or_record_violation().is_some());
        }
        freed
    }

    /// Returns the address of the link in a frame.
    fn link(&self, frame: Pfn) -> *mut u64 {
        self.map.pointer(frame).cast()
    }
}

impl<P> fmt::Debug for TableFrames<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableFrames").field("first", &self.first_free).finish_non_exhaustive()
    }
}
