//! Provides memory and address translation to the virtio-drivers crate.

use super::memory::{FRAMES, alloc_frames, phys, virt};
use core::ptr::NonNull;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{AllocRequest, Pfn, PfnRange};
use hotmem_guest::to_usize;
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// Provides frames for queues, and converts addresses. There is no IOMMU.
pub(crate) enum KernelHal {}

const _: () = assert!(PAGE_SIZE as u64 == FRAME_SIZE);

// SAFETY: `dma_alloc` returns zeroed frames that the engine has allocated. They stay mapped and
// have no other user until `dma_dealloc`. `Buses::find` has mapped the registers.
unsafe impl Hal for KernelHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // The crate treats address 0 as a failed allocation.
        let none = (0, NonNull::dangling());
        let Ok(frames) = alloc_frames(AllocRequest::frames(pages as u64)) else { return none };
        let phys_addr = frames.start().phys_addr();
        let Some(pointer) = NonNull::new(virt(phys_addr)) else { return none };
        // SAFETY: the frames were just allocated, so they are mapped and have no other user.
        unsafe { pointer.write_bytes(0, to_usize(frames.bytes().0)) }
        (phys_addr, pointer)
    }

    unsafe fn dma_dealloc(phys_addr: PhysAddr, _: NonNull<u8>, pages: usize) -> i32 {
        let frames = Pfn::containing(phys_addr)
            .and_then(|first| PfnRange::with_len(first, pages as u64))
            // SAFETY: the caller guarantees that the frames are those of a `dma_alloc`.
            .and_then(|frames| unsafe { FRAMES.fill_and_free_raw(frames) }.ok());
        if frames.is_some() { 0 } else { -1 }
    }

    unsafe fn mmio_phys_to_virt(phys_addr: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(virt(phys_addr)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        phys(buffer.cast().as_ptr())
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
