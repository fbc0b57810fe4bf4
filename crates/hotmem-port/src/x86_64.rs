//! Implements the frame allocator traits of the crate `x86_64` for [`TableFrames`], so that its
//! mappers take page tables from the list and return them to it.

use crate::TableFrames;
use ::x86_64::PhysAddr;
use ::x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PhysFrame, Size4KiB};
use hotmem::{Pfn, Platform};
use hotmem_invariant::OrRecordViolation;

// SAFETY: each frame of the list is allocated and unused, by the promise to `add_frames`, and `take`
// removes the frame that it returns.
unsafe impl<P: Platform> FrameAllocator<Size4KiB> for TableFrames<'_, P> {
    /// Takes a frame from the list, as [`TableFrames::take`] does.
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let address = PhysAddr::try_new(self.take()?.phys_addr()).ok();
        // A frame number has at most 40 bits, and an address of `x86_64` 52.
        address.or_record_violation().map(PhysFrame::containing_address)
    }
}

impl<P: Platform> FrameDeallocator<Size4KiB> for TableFrames<'_, P> {
    /// Adds the frame of a page table to the list. [`TableFrames::free_rest`] frees it.
    ///
    /// # Safety
    /// As for [`TableFrames::add_frames`].
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame) {
        let mut frame = Pfn::containing(frame.start_address().as_u64());
        // SAFETY: by the caller's promise.
        unsafe { self.add_frames(&mut || frame.take()) };
    }
}
