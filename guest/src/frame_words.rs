//! Accesses physical frames as 512 words each, for page tables and for the workload's data.

use crate::to_usize;
use hotmem::{Pfn, PfnRange};

/// The number of words in a frame.
pub const FRAME_WORDS: u64 = 512;

/// Iterates over the frames of a range.
pub fn each_frame(range: PfnRange) -> impl Iterator<Item = Pfn> {
    (range.start().number()..range.end().number()).filter_map(Pfn::new)
}

/// Access to frames that are mapped at their physical address plus an offset, modulo 2^64.
#[derive(Clone, Copy, Debug)]
pub struct FrameWords {
    offset: usize,
}

impl FrameWords {
    /// Returns the access with this offset.
    #[must_use]
    pub const fn at_offset(offset: usize) -> Self {
        FrameWords { offset }
    }

    /// Returns the address of the frame's first word.
    #[must_use]
    pub fn pointer(self, frame: Pfn) -> *mut u64 {
        let address = self.offset.wrapping_add(to_usize(frame.phys_addr()));
        core::ptr::with_exposed_provenance_mut(address)
    }

    /// Reads a word.
    ///
    /// # Safety
    /// `frame` is mapped at the offset, `index` is below [`FRAME_WORDS`], and nothing except the
    /// CPU's page walk writes to the word meanwhile.
    #[must_use]
    pub unsafe fn read(self, frame: Pfn, index: u64) -> u64 {
        // SAFETY: the caller guarantees that the word is mapped and that no code writes to it.
        // Volatile, because devices and page walks access frames.
        unsafe { self.pointer(frame).add(to_usize(index)).read_volatile() }
    }

    /// Writes a word.
    ///
    /// # Safety
    /// As for [`FrameWords::read`], and the caller owns the word.
    pub unsafe fn write(self, frame: Pfn, index: u64, word: u64) {
        // SAFETY: the caller guarantees that the word is mapped, and owns the word.
        unsafe { self.pointer(frame).add(to_usize(index)).write_volatile(word) }
    }
}
