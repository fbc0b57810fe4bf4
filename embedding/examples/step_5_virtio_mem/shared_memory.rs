//! Allocates the memory of queues, which devices and drivers share.

use core::ptr::NonNull;
use hotmem::{AllocRequest, Bytes, Frames, OneCpu};
use hotmem_embedding::{PrintedError, direct_map};
use hotmem_virtio::dma::DmaMemory;

/// Allocates memory that a device and its driver share as long as the kernel runs.
pub fn shared_memory(frames: &Frames<OneCpu>, len: usize) -> Result<DmaMemory, PrintedError> {
    let count = Bytes((len as u64).next_multiple_of(4096)).frames();
    let memory = frames.alloc(AllocRequest::frames(count))?.into_raw();
    let phys_addr = memory.start().phys_addr();
    let pointer = NonNull::new(direct_map(phys_addr)).ok_or("the direct map has address 0")?;
    // SAFETY: the frames were allocated above, and are never freed.
    Ok(unsafe { DmaMemory::new(pointer, phys_addr, len) })
}
