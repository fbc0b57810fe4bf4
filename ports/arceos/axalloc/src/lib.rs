//! ArceOS's allocator: Hotmem behind the interface of ArceOS's own crate of this name, as far as
//! ArceOS's other crates use it. `machine.rs` has what is behind it.
#![no_std]

mod machine;

pub use machine::{FRAMES, HEAP, HOTPLUG, MAPPING};

use axerrno::{AxError, AxResult};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use hotmem::AllocRequest;
use hotmem::geometry::FRAME_SIZE;

/// What pages are used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UsageKind {
    /// Memory of an address space.
    VirtMem,
    /// Page tables.
    PageTable,
    /// Memory that devices access.
    Dma,
}

/// The allocator of ArceOS.
pub struct GlobalAllocator;

#[cfg_attr(target_os = "none", global_allocator)]
static GLOBAL_ALLOCATOR: GlobalAllocator = GlobalAllocator;

/// Returns the allocator.
pub fn global_allocator() -> &'static GlobalAllocator {
    &GLOBAL_ALLOCATOR
}

/// Names the first memory that is free. Virtual addresses are those of the linear map.
pub fn global_init(start: usize, size: usize) {
    machine::add_boot_memory(start, size).expect("space for the first range");
}

/// Names more memory that is free.
pub fn global_add_memory(start: usize, size: usize) -> AxResult {
    machine::add_boot_memory(start, size)
}

impl GlobalAllocator {
    /// Returns the allocator's name.
    pub fn name(&self) -> &'static str {
        "Hotmem"
    }

    /// Allocates memory for an object.
    pub fn alloc(&self, layout: Layout) -> AxResult<NonNull<u8>> {
        machine::alloc(layout).ok_or(AxError::NoMemory)
    }

    /// Frees it, which was allocated with the same layout.
    pub fn dealloc(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: by the interface's contract, which ArceOS does not mark as unsafe.
        unsafe { machine::free(object, layout) };
    }

    /// Allocates pages, aligned to so many bytes. Returns their address.
    pub fn alloc_pages(&self, pages: usize, align: usize, kind: UsageKind) -> AxResult<usize> {
        // While ArceOS maps memory for the engine, its page tables are those that it is lent.
        if kind == UsageKind::PageTable
            && (pages, align as u64) == (1, FRAME_SIZE)
            && let Some(table) = MAPPING.take_table()
        {
            return Ok(machine::LINEAR.pointer(table).addr());
        }
        let request = AllocRequest::frames(pages as u64);
        machine::alloc_frames(request.aligned((align as u64).div_ceil(FRAME_SIZE)))
    }

    /// Frees pages.
    pub fn dealloc_pages(&self, start: usize, pages: usize, _: UsageKind) {
        machine::free_frames(start, pages);
    }
}

// SAFETY: the heap's promises are those of `GlobalAlloc`.
unsafe impl GlobalAlloc for GlobalAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        machine::alloc(layout).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        if let Some(object) = NonNull::new(object) {
            // SAFETY: by the caller's promise.
            unsafe { machine::free(object, layout) };
        }
    }
}
