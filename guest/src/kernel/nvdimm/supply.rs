//! Frames for descriptors: on the device, or of ordinary memory.

use crate::kernel::memory::{FRAMES, alloc_frames};
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocError, AllocRequest, PfnRange};

/// Frames to take. What nobody took goes back by itself.
pub(super) struct Supply {
    left: PfnRange,
    on_device: bool,
}

impl Supply {
    /// These, which are the device's.
    pub(super) fn on_device(frames: PfnRange) -> Self {
        Supply { left: frames, on_device: true }
    }

    /// As many as there are in ordinary memory.
    pub(super) fn of_memory() -> Self {
        Supply { left: PfnRange::EMPTY, on_device: false }
    }

    /// Up to this many frames in a row, at least one; a whole pageblock, if there is one, for
    /// whoever takes this many.
    pub(super) fn take(&mut self, frames: u64) -> Result<PfnRange, AllocError> {
        let block = PAGEBLOCK_FRAMES as u64;
        let whole = AllocRequest::frames(block).aligned(block);
        if frames >= block
            && !self.on_device
            && let Ok(whole) = alloc_frames(whole)
        {
            return Ok(whole);
        }
        if self.left.is_empty() {
            if self.on_device {
                return Err(AllocError::OutOfMemory);
            }
            self.left = alloc_frames(whole).or_else(|_| alloc_frames(AllocRequest::frames(1)))?;
        }
        let start = self.left.start();
        let (taken, left) =
            self.left.split_at(start.checked_add(frames).unwrap_or(self.left.end()));
        self.left = left;
        Ok(taken)
    }

    /// These have been taken in vain.
    pub(super) fn put_back(&mut self, frames: PfnRange) {
        if !self.on_device {
            give_back(frames);
        }
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        self.put_back(self.left);
    }
}

/// Frees frames that a supply has provided.
pub(super) fn give_back(frames: PfnRange) {
    // SAFETY: the frames were allocated for a supply, and nothing refers to them any more, so this
    // cannot fail.
    let _ = unsafe { FRAMES.free_raw_filled(frames) };
}
