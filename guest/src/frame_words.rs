//! Access to physical frames as 512 words each, for tables and for the workload's data.

use crate::to_usize;
use hotmem::Pfn;

/// Words in a frame.
pub const FRAME_WORDS: u64 = 512;

/// Access to frames at their physical address plus an offset, modulo 2^64.
#[derive(Clone, Copy, Debug)]
pub struct FrameWords {
    offset: usize,
}

impl FrameWords {
    /// Makes an access with this offset.
    #[must_use]
    pub const fn at_offset(offset: usize) -> Self {
        FrameWords { offset }
    }

    /// Returns the frame's first word.
    #[must_use]
    pub fn pointer(self, frame: Pfn) -> *mut u64 {
        let address = self.offset.wrapping_add(to_usize(frame.phys_addr()));
        core::ptr::with_exposed_provenance_mut(address)
    }

    /// Reads a word.
    ///
    /// # Safety
    /// `frame` is mapped at the offset, `index` is below [`FRAME_WORDS`], and nothing writes to the
    /// word meanwhile, except for the CPU's page walk.
    #[must_use]
    pub unsafe fn read(self, frame: Pfn, index: u64) -> u64 {
        // SAFETY: the caller guarantees it. Volatile, because devices and page walks read frames.
        unsafe { self.pointer(frame).add(to_usize(index)).read_volatile() }
    }

    /// Writes a word.
    ///
    /// # Safety
    /// As for [`FrameWords::read`], and the caller owns the word.
    pub unsafe fn write(self, frame: Pfn, index: u64, word: u64) {
        // SAFETY: the caller guarantees it.
        unsafe { self.pointer(frame).add(to_usize(index)).write_volatile(word) }
    }
}
