//! Defines heap memory that stands for physical memory.

use crate::ranges::range;
use hotmem::{AlwaysMapped, PfnRange, geometry};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU64, Ordering};

/// Heap memory that stands for physical memory from address 0 up.
pub struct Memory {
    allocated: *mut u8,
    layout: Layout,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: all access to the memory is by atomics, so any thread may make it.
unsafe impl Send for Memory {}
// SAFETY: all access to the memory is by atomics, so several threads may make it.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `frames` frames of zeros. The host commits a page when it is first touched.
    ///
    /// # Panics
    /// Panics if the process has not enough address space.
    #[must_use]
    pub fn new(frames: u64) -> Memory {
        let bytes = usize::try_from(frames * geometry::FRAME_SIZE).expect("the size fits usize");
        // Align the start by hand: for a larger alignment, the allocator writes the zeros itself,
        // which commits all memory.
        let layout =
            Layout::from_size_align(bytes + 4096, 1).expect("the size is below isize::MAX");
        // SAFETY: the layout is not empty.
        let allocated = unsafe { alloc_zeroed(layout) };
        assert!(!allocated.is_null());
        let base =
            allocated.wrapping_add(allocated.addr().next_multiple_of(4096) - allocated.addr());
        Memory { allocated, layout, base, bytes }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.base
    }

    /// Returns a mapping of all addresses. The instance that uses it must be dropped before this
    /// memory.
    #[must_use]
    pub fn direct_map(&self) -> AlwaysMapped {
        // SAFETY: the memory is readable and writable, and only this type and the engine access it.
        // Tests do not add memory beyond its end, or do not access what they add there.
        unsafe { AlwaysMapped::new(self.base, PfnRange::ALL) }
    }

    /// Returns a mapping that ends where this memory ends.
    #[must_use]
    pub fn mapping(&self) -> AlwaysMapped {
        let mappable_range = range(0, self.bytes as u64 / geometry::FRAME_SIZE);
        // SAFETY: the memory of this range is readable and writable, and only this type and the engine
        // access it.
        unsafe { AlwaysMapped::new(self.base, mappable_range) }
    }

    /// Returns the first 64-bit word of a frame.
    #[must_use]
    pub fn word(&self, frame: u64) -> &AtomicU64 {
        self.word_at(frame * geometry::FRAME_SIZE)
    }

    /// Returns the 64-bit words of a frame.
    pub fn words(&self, frame: u64) -> impl Iterator<Item = u64> {
        self.cells(frame).map(|word| word.load(Ordering::Relaxed))
    }

    /// Returns the 64-bit words of a frame as atomics, which can be written.
    pub fn cells(&self, frame: u64) -> impl Iterator<Item = &AtomicU64> {
        let addresses =
            (frame * geometry::FRAME_SIZE..(frame + 1) * geometry::FRAME_SIZE).step_by(8);
        addresses.map(|address| self.word_at(address))
    }

    fn word_at(&self, address: u64) -> &AtomicU64 {
        let offset = usize::try_from(address).expect("the size fits usize");
        assert!(offset < self.bytes && offset.is_multiple_of(8));
        // SAFETY: `offset` lies within the memory and is aligned, and all access is by atomics.
        unsafe { &*self.base.add(offset).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `allocated` was allocated with `layout`.
        unsafe { dealloc(self.allocated, self.layout) };
    }
}
