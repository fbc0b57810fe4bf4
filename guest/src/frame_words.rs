//! Physical frames as 512 words each, where the kernel reaches them: for tables that lie in frames
//! and for what an application would keep in them.

use crate::to_usize;
use hotmem::Pfn;

/// Words in a frame.
pub const FRAME_WORDS: u64 = 512;

/// Where frames are reached: at an offset (wrapping) plus their physical address.
#[derive(Clone, Copy, Debug)]
pub struct FrameWords {
    offset: usize,
}

impl FrameWords {
    /// Frames at this offset.
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
    /// `frame` is mapped at the offset, `index` is below [`FRAME_WORDS`], and nobody writes to the
    /// word meanwhile, the CPU's page walker excepted.
    #[must_use]
    pub unsafe fn read(self, frame: Pfn, index: u64) -> u64 {
        // SAFETY: as the caller says. Volatile, because devices and page walkers look at frames.
        unsafe { self.pointer(frame).add(to_usize(index)).read_volatile() }
    }

    /// Writes a word.
    ///
    /// # Safety
    /// As for [`FrameWords::read`], and the word is the caller's to write.
    pub unsafe fn write(self, frame: Pfn, index: u64, word: u64) {
        // SAFETY: as the caller says.
        unsafe { self.pointer(frame).add(to_usize(index)).write_volatile(word) }
    }
}
