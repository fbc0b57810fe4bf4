//! Replaces ArceOS's crate of the same name (0.9.2). Implements by Hotmem the interface that the
//! other crates use.
//!
//! | file | contents |
//! |---|---|
//! | `lib.rs` | the allocator |
//! | `ops.rs` | a macro for the methods of the allocator |
//! | `engine.rs` | Hotmem's frames, heap and control path |
//! | `error.rs` | errors |
//! | `page.rs` | pages that are freed when they are dropped |
//! | `reclaim.rs` | frees pages of the kernel if no memory is free |
//! | `usage.rs` | counts what memory is used for |
#![no_std]

#[cfg(feature = "tracking")]
compile_error!("Hotmem records no backtraces: build the kernel without the feature `tracking`");

mod engine;
mod error;
mod ops;
mod page;
mod reclaim;
mod usage;

pub use engine::{ControlPath, Cpus, FRAMES, HOTPLUG, heap, mapping, refused_frees};
pub use error::{AllocError, AllocResult};
pub use page::GlobalPage;
pub use reclaim::{PageReclaimFn, register_page_reclaim_fn, try_page_reclaim};
pub use usage::{UsageKind, Usages};

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use hotmem::geometry::FRAME_SIZE;
use hotmem::{AllocRequest, Pfn};
use reclaim::allocate;
use usage::{count, uncount};

const PAGE_SIZE: usize = FRAME_SIZE as usize;
/// The end of the frames below 4 GiB, which ArceOS calls DMA32.
const DMA32_END: Pfn = Pfn::containing(1 << 32).unwrap();

/// The name that ArceOS gives to its default allocator of bytes.
pub type DefaultByteAllocator = GlobalAllocator;

/// The allocator of ArceOS.
#[derive(Default, Debug)]
pub struct GlobalAllocator;

#[cfg_attr(any(target_os = "none", feature = "global-allocator"), global_allocator)]
static GLOBAL_ALLOCATOR: GlobalAllocator = GlobalAllocator::new();

/// Returns the allocator.
pub fn global_allocator() -> &'static GlobalAllocator {
    &GLOBAL_ALLOCATOR
}

/// Adds the largest range of free memory at boot. `start` is an address in the linear map.
pub fn global_init(start: usize, size: usize) -> AllocResult {
    GLOBAL_ALLOCATOR.init(start, size)
}

/// Adds a further range of free memory, at boot or later. `start` is an address in the linear map.
pub fn global_add_memory(start: usize, size: usize) -> AllocResult {
    GLOBAL_ALLOCATOR.add_memory(start, size)
}

/// Prepares the allocator for the calling CPU. Hotmem needs no such call.
pub fn init_percpu_slab(_: usize) {}

fn request(pages: usize, align: usize) -> AllocRequest {
    AllocRequest::frames(pages as u64).aligned((align as u64).div_ceil(FRAME_SIZE))
}

/// Allocates frames for `pages` pages of this kind. Returns their virtual address.
fn alloc_frames(request: AllocRequest, pages: usize, kind: UsageKind) -> AllocResult<usize> {
    let start = allocate(pages, || engine::alloc_frames(request))?;
    count(kind, pages * PAGE_SIZE);
    Ok(start)
}

impl GlobalAllocator {
    /// Makes the allocator. All values are the same one, which has the memory of the machine.
    pub const fn new() -> GlobalAllocator {
        GlobalAllocator
    }
}

ops::allocator_ops! {
    /// Returns the name of the allocator.
    fn name(&self) -> &'static str {
        "Hotmem"
    }

    /// Adds the first range of free memory.
    fn init(&self, start_vaddr: usize, size: usize) -> AllocResult {
        if engine::has_memory() {
            return Err(AllocError::AlreadyInitialized);
        }
        engine::add_memory(start_vaddr, size)
    }

    /// Adds a further range of free memory. After the first allocation, only whole pageblocks of 2 MiB
    /// of it are used, and a range without any is refused.
    fn add_memory(&self, start_vaddr: usize, size: usize) -> AllocResult {
        if !engine::has_memory() {
            return Err(AllocError::NotInitialized);
        }
        engine::add_memory(start_vaddr, size)
    }

    /// Allocates memory for an object.
    fn alloc(&self, layout: Layout) -> AllocResult<NonNull<u8>> {
        let object = allocate(layout.size().div_ceil(PAGE_SIZE), || engine::alloc(layout))?;
        count(UsageKind::RustHeap, layout.size());
        Ok(object)
    }

    /// Frees an object.
    fn dealloc(&self, pos: NonNull<u8>, layout: Layout) {
        // SAFETY: ArceOS frees only objects that it has allocated, with their layout. ArceOS's
        // interface requires this, although `dealloc` is not an unsafe function.
        unsafe { engine::free(pos, layout) };
        engine::check_free(uncount(UsageKind::RustHeap, layout.size()));
    }

    /// Allocates pages that are aligned to `align` bytes. Returns their virtual address.
    fn alloc_pages(&self, num_pages: usize, align: usize, kind: UsageKind) -> AllocResult<usize> {
        // While ArceOS maps memory for the engine, ArceOS must take its page tables from the frames
        // that the engine has provided.
        if kind == UsageKind::PageTable
            && (num_pages, align) == (1, PAGE_SIZE)
            && let Some(table) = engine::take_table()
        {
            count(kind, PAGE_SIZE);
            return Ok(table);
        }
        alloc_frames(request(num_pages, align), num_pages, kind)
    }

    /// Allocates pages below 4 GiB.
    fn alloc_dma32_pages(
        &self,
        num_pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize> {
        alloc_frames(request(num_pages, align).within(..DMA32_END), num_pages, kind)
    }

    /// Allocates the pages at this address.
    fn alloc_pages_at(
        &self,
        start: usize,
        num_pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize> {
        let place = engine::frame_at(start).ok_or(AllocError::InvalidParam)?;
        alloc_frames(request(num_pages, align).at(place), num_pages, kind)
    }

    /// Frees pages. Pages that are not allocated, or not as many, are refused, and the refusal is
    /// counted; with debug assertions it panics.
    fn dealloc_pages(&self, pos: usize, num_pages: usize, kind: UsageKind) {
        let freed = engine::free_frames(pos, num_pages);
        engine::check_free(freed && uncount(kind, num_pages * PAGE_SIZE));
    }

    /// Returns the number of bytes in use.
    fn used_bytes(&self) -> usize {
        self.used_pages() * PAGE_SIZE
    }

    /// Returns the number of free bytes.
    fn available_bytes(&self) -> usize {
        self.available_pages() * PAGE_SIZE
    }

    /// Returns the number of pages in use.
    fn used_pages(&self) -> usize {
        engine::used_frames()
    }

    /// Returns the number of pages that are free, apart from the few that the engine uses for itself.
    fn available_pages(&self) -> usize {
        engine::online_frames().saturating_sub(engine::used_frames())
    }

    /// Returns the number of bytes in use, by kind.
    fn usages(&self) -> Usages {
        Usages::current()
    }
}

// SAFETY: `Heap` satisfies the requirements of `GlobalAlloc`.
unsafe impl GlobalAlloc for GlobalAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        GlobalAllocator::alloc(self, layout).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        if let Some(object) = NonNull::new(object) {
            GlobalAllocator::dealloc(self, object, layout);
        }
    }
}
