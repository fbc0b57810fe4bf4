//! Supplies frames for descriptors, on the device or in ordinary memory.

use crate::kernel::fatal::must;
use crate::kernel::memory::{FRAMES, alloc_frames};
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocError, AllocRequest, PfnRange};

/// A supply of frames. Frames that were not taken are freed when it is dropped.
pub(super) struct DescriptorFrames {
    unused_frames: PfnRange,
    on_device: bool,
}

impl DescriptorFrames {
    /// Makes a supply of `frames`, which belong to the device.
    pub(super) fn on_device(frames: PfnRange) -> Self {
        DescriptorFrames { unused_frames: frames, on_device: true }
    }

    /// Makes a supply of ordinary memory.
    pub(super) fn of_memory() -> Self {
        DescriptorFrames { unused_frames: PfnRange::EMPTY, on_device: false }
    }

    /// Takes at least one and at most `frames` contiguous frames. In ordinary memory, takes a whole
    /// pageblock if `frames` is that large and a pageblock is free.
    pub(super) fn take(&mut self, frames: u64) -> Result<PfnRange, AllocError> {
        let block = PAGEBLOCK_FRAMES as u64;
        let whole = AllocRequest::frames(block).aligned(block);
        if frames >= block
            && !self.on_device
            && let Ok(whole) = alloc_frames(whole)
        {
            return Ok(whole);
        }
        if self.unused_frames.is_empty() {
            if self.on_device {
                return Err(AllocError::OutOfMemory);
            }
            self.unused_frames =
                alloc_frames(whole).or_else(|_| alloc_frames(AllocRequest::frames(1)))?;
        }
        let start = self.unused_frames.start();
        let (taken, unused) = self
            .unused_frames
            .split_at(start.checked_add(frames).unwrap_or(self.unused_frames.end()));
        self.unused_frames = unused;
        Ok(taken)
    }

    /// Takes back frames that were not used. `frames` may be empty.
    pub(super) fn put_back(&mut self, frames: PfnRange) {
        if !self.on_device && !frames.is_empty() {
            free_frames(frames);
        }
    }
}

impl Drop for DescriptorFrames {
    fn drop(&mut self) {
        self.put_back(self.unused_frames);
    }
}

/// Frees frames that a supply has provided.
pub(super) fn free_frames(frames: PfnRange) {
    // SAFETY: the frames were allocated for a supply, and nothing refers to them any more.
    must("device memory: free", unsafe { FRAMES.fill_and_free_raw(frames) });
}
