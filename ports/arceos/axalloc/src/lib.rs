//! Replaces ArceOS's crate of the same name. Offers the part of that crate's interface that
//! ArceOS's other crates use, on top of Hotmem. The implementation is in `engine.rs`.
#![no_std]

mod engine;

pub use engine::{FRAMES, HEAP, HOTPLUG, MAPPING, global_add_memory};

use axerrno::{AxError, AxResult};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use hotmem::AllocRequest;
use hotmem::geometry::FRAME_SIZE;

/// What allocated pages are used for.
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

/// Adds the first range of free memory at boot. `start` is a virtual address in the linear map.
pub fn global_init(start: usize, size: usize) {
    global_add_memory(start, size).expect("the table has space for the first range");
}

impl GlobalAllocator {
    /// Returns the allocator's name.
    pub fn name(&self) -> &'static str {
        "Hotmem"
    }

    /// Allocates memory for an object.
    pub fn alloc(&self, layout: Layout) -> AxResult<NonNull<u8>> {
        engine::alloc(layout).ok_or(AxError::NoMemory)
    }

    /// Frees an object. `layout` is the layout with which the object was allocated.
    pub fn dealloc(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: ArceOS frees only objects that it has allocated, with their layout. ArceOS's
        // interface requires this, although `dealloc` is not an unsafe function.
        unsafe { engine::free(object, layout) };
    }

    /// Allocates pages that are aligned to `align` bytes. Returns their virtual address.
    pub fn alloc_pages(&self, pages: usize, align: usize, kind: UsageKind) -> AxResult<usize> {
        // While ArceOS maps memory for the engine, ArceOS must take its page tables from the frames
        // that the engine has provided.
        if kind == UsageKind::PageTable
            && (pages, align as u64) == (1, FRAME_SIZE)
            && let Some(table) = MAPPING.take_table()
        {
            return Ok(engine::LINEAR.pointer(table).addr());
        }
        let request = AllocRequest::frames(pages as u64);
        engine::alloc_frames(request.aligned((align as u64).div_ceil(FRAME_SIZE)))
    }

    /// Returns the number of pages in use: those that were allocated, and those of the heap.
    pub fn used_pages(&self) -> usize {
        engine::used_frames()
    }

    /// Returns the number of pages that are free, apart from the few that the engine uses for itself.
    pub fn available_pages(&self) -> usize {
        engine::online_frames().saturating_sub(engine::used_frames())
    }

    /// Frees pages.
    pub fn dealloc_pages(&self, start: usize, pages: usize, _: UsageKind) {
        engine::free_frames(start, pages);
    }
}

// SAFETY: both functions call Hotmem's heap, which satisfies the requirements of `GlobalAlloc`.
unsafe impl GlobalAlloc for GlobalAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        engine::alloc(layout).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        if let Some(object) = NonNull::new(object) {
            // SAFETY: the caller guarantees that `object` was allocated with `layout`.
            unsafe { engine::free(object, layout) };
        }
    }
}
