//! Allocates memory that is shared with devices.

use super::device_error::DeviceError;
use super::memory::{alloc_frames, virt};
use core::ptr::NonNull;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{AllocRequest, PfnRange};
use hotmem_guest::to_usize;
use hotmem_virtio::dma::DmaMemory;

/// Allocates memory to share with a device. Its frames may be freed after the device was reset.
pub(crate) fn queue_memory(bytes: usize) -> Result<(DmaMemory, PfnRange), DeviceError> {
    let request = AllocRequest::frames((bytes as u64).div_ceil(FRAME_SIZE));
    let frames = alloc_frames(request).map_err(DeviceError::Queue)?;
    let phys_addr = frames.start().phys_addr();
    let pointer = NonNull::new(virt(phys_addr)).unwrap_or(NonNull::dangling());
    // SAFETY: the frames are allocated and mapped. The caller frees them only after the device was
    // reset. The machine has no IOMMU, so the device uses physical addresses.
    let memory = unsafe { DmaMemory::new(pointer, phys_addr, to_usize(frames.bytes().0)) };
    Ok((memory, frames))
}
