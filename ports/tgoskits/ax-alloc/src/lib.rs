//! Replaces ArceOS's crate of the same name (0.9.2). Implements by Hotmem the interface that the
//! other crates use. The engine is in `engine.rs`.
#![no_std]

mod engine;
mod page;

pub use engine::{ControlPath, Cpus, FRAMES, HOTPLUG, heap, mapping, refused_frees};
pub use page::GlobalPage;

use core::alloc::{GlobalAlloc, Layout};
use core::array;
use core::fmt;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use hotmem::geometry::FRAME_SIZE;
use hotmem::{AllocRequest, Pfn};

const PAGE_SIZE: usize = FRAME_SIZE as usize;
/// The number of frames that the DMA32 zone has: all below 4 GiB.
const DMA32_END: Pfn = Pfn::containing(1 << 32).unwrap();

/// What memory is used for.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UsageKind {
    /// Objects of the heap.
    RustHeap,
    /// Memory of an address space.
    VirtMem,
    /// The page cache of a file system.
    PageCache,
    /// Page tables.
    PageTable,
    /// Stacks of tasks.
    TaskStack,
    /// Memory that devices access.
    Dma,
    /// Memory of a [`GlobalPage`].
    Global,
}

const KINDS: usize = UsageKind::Global as usize + 1;

/// The number of bytes in use, by kind.
#[derive(Clone, Copy, Debug)]
pub struct Usages([usize; KINDS]);

impl Usages {
    /// Returns the number of bytes in use for this.
    pub fn get(&self, kind: UsageKind) -> usize {
        self.0[kind as usize]
    }
}

static USAGES: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

fn count(kind: UsageKind, bytes: usize) {
    USAGES[kind as usize].fetch_add(bytes, Ordering::Relaxed);
}

fn uncount(kind: UsageKind, bytes: usize) {
    USAGES[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
}

/// The reason why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// A size, an alignment or an address is invalid.
    #[error("the size, the alignment or the address is invalid")]
    InvalidParam,
    /// The allocator is already initialized.
    #[error("memory was added before")]
    AlreadyInitialized,
    /// The range overlaps another one.
    #[error("the memory overlaps memory that was added before")]
    MemoryOverlap,
    /// Not enough memory is free.
    #[error("too little memory is free")]
    NoMemory,
    /// The memory was not allocated.
    #[error("the memory is not allocated")]
    NotAllocated,
    /// The allocator is not initialized.
    #[error("no memory was added yet")]
    NotInitialized,
    /// There is no such allocation.
    #[error("there is no such allocation")]
    NotFound,
}

impl From<hotmem::AllocError> for AllocError {
    fn from(error: hotmem::AllocError) -> AllocError {
        match error {
            hotmem::AllocError::Bad(_) => AllocError::InvalidParam,
            _ => AllocError::NoMemory,
        }
    }
}

/// A result of the allocator.
pub type AllocResult<T = ()> = Result<T, AllocError>;

/// Frees pages for an allocation that has failed. Returns how many.
pub type PageReclaimFn = fn(num_pages: usize) -> usize;

static RECLAIM: AtomicPtr<()> = AtomicPtr::new(null_mut());
static RECLAIMING: AtomicBool = AtomicBool::new(false);

/// Sets the function that frees pages when an allocation fails.
pub fn register_page_reclaim_fn(reclaim: PageReclaimFn) {
    RECLAIM.store(reclaim as *mut (), Ordering::Release);
}

/// Calls the function that frees pages, unless it is running already. Returns how many it freed.
pub fn try_page_reclaim(num_pages: usize) -> usize {
    let reclaim = RECLAIM.load(Ordering::Acquire);
    if reclaim.is_null() || RECLAIMING.swap(true, Ordering::Acquire) {
        return 0;
    }
    // SAFETY: `register_page_reclaim_fn` has stored a function of this type.
    let freed = unsafe { core::mem::transmute::<*mut (), PageReclaimFn>(reclaim)(num_pages) };
    RECLAIMING.store(false, Ordering::Release);
    freed
}

/// Allocates. If no memory is free, calls the function that frees pages, and tries again.
fn allocate<T>(pages: usize, mut attempt: impl FnMut() -> AllocResult<T>) -> AllocResult<T> {
    let mut result = attempt();
    for _ in 0..4 {
        if !matches!(result, Err(AllocError::NoMemory)) {
            break;
        }
        let freed = try_page_reclaim(pages.max(16));
        result = attempt();
        if freed == 0 {
            break;
        }
    }
    result
}

/// The interface of ArceOS's allocators.
#[allow(missing_docs)]
pub trait AllocatorOps {
    fn name(&self) -> &'static str;
    fn init(&self, start_vaddr: usize, size: usize) -> AllocResult;
    fn add_memory(&self, start_vaddr: usize, size: usize) -> AllocResult;
    fn alloc(&self, layout: Layout) -> AllocResult<NonNull<u8>>;
    fn dealloc(&self, pos: NonNull<u8>, layout: Layout);
    fn alloc_pages(&self, num_pages: usize, align: usize, kind: UsageKind) -> AllocResult<usize>;
    fn alloc_dma32_pages(
        &self,
        num_pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize>;
    fn alloc_pages_at(
        &self,
        start: usize,
        num_pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize>;
    fn dealloc_pages(&self, pos: usize, num_pages: usize, kind: UsageKind);
    fn used_bytes(&self) -> usize;
    fn available_bytes(&self) -> usize;
    fn used_pages(&self) -> usize;
    fn available_pages(&self) -> usize;
    fn usages(&self) -> Usages;
}

/// The name that ArceOS gives to its default allocator of bytes.
pub type DefaultByteAllocator = GlobalAllocator;

/// The allocator of ArceOS.
#[derive(Default)]
pub struct GlobalAllocator;

#[cfg_attr(any(target_os = "none", feature = "global-allocator"), global_allocator)]
static GLOBAL_ALLOCATOR: GlobalAllocator = GlobalAllocator;

/// Returns the allocator.
pub fn global_allocator() -> &'static GlobalAllocator {
    &GLOBAL_ALLOCATOR
}

/// Adds the largest range of free memory at boot. `start` is an address in the linear map.
pub fn global_init(start: usize, size: usize) -> AllocResult {
    engine::add_memory(start, size)
}

/// Adds a further range of free memory, at boot or later. `start` is an address in the linear map.
pub fn global_add_memory(start: usize, size: usize) -> AllocResult {
    engine::add_memory(start, size)
}

/// Prepares the allocator for the calling CPU. Hotmem needs no such call.
pub fn init_percpu_slab(_: usize) {}

fn request(pages: usize, align: usize) -> AllocRequest {
    AllocRequest::frames(pages as u64).aligned((align as u64).div_ceil(FRAME_SIZE))
}

impl GlobalAllocator {
    /// Returns the name of the allocator.
    pub const fn name(&self) -> &'static str {
        "Hotmem"
    }

    /// Adds the first range of free memory.
    pub fn init(&self, start_vaddr: usize, size: usize) -> AllocResult {
        global_init(start_vaddr, size)
    }

    /// Adds a further range of free memory.
    pub fn add_memory(&self, start_vaddr: usize, size: usize) -> AllocResult {
        global_add_memory(start_vaddr, size)
    }

    /// Allocates memory for an object.
    pub fn alloc(&self, layout: Layout) -> AllocResult<NonNull<u8>> {
        let object = allocate(layout.size().div_ceil(PAGE_SIZE), || engine::alloc(layout));
        if object.is_ok() {
            count(UsageKind::RustHeap, layout.size());
        }
        object
    }

    /// Frees an object.
    pub fn dealloc(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: ArceOS frees only objects that it has allocated, with their layout. ArceOS's
        // interface requires this, although `dealloc` is not an unsafe function.
        unsafe { engine::free(object, layout) };
        uncount(UsageKind::RustHeap, layout.size());
    }

    fn alloc_frames(
        &self,
        request: AllocRequest,
        pages: usize,
        kind: UsageKind,
    ) -> AllocResult<usize> {
        let start = allocate(pages, || engine::alloc_frames(request))?;
        count(kind, pages * PAGE_SIZE);
        Ok(start)
    }

    /// Allocates pages that are aligned to `align` bytes. Returns their virtual address.
    pub fn alloc_pages(&self, pages: usize, align: usize, kind: UsageKind) -> AllocResult<usize> {
        // While ArceOS maps memory for the engine, ArceOS must take its page tables from the frames
        // that the engine has provided.
        if kind == UsageKind::PageTable
            && (pages, align) == (1, PAGE_SIZE)
            && let Some(table) = engine::take_table()
        {
            count(kind, PAGE_SIZE);
            return Ok(table);
        }
        self.alloc_frames(request(pages, align), pages, kind)
    }

    /// Allocates pages below 4 GiB.
    pub fn alloc_dma32_pages(
        &self,
        pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize> {
        self.alloc_frames(request(pages, align).within(..DMA32_END), pages, kind)
    }

    /// Allocates the pages at this address.
    pub fn alloc_pages_at(
        &self,
        start: usize,
        pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize> {
        let place = engine::frame_at(start).ok_or(AllocError::InvalidParam)?;
        self.alloc_frames(request(pages, align).at(place), pages, kind)
    }

    /// Frees pages.
    pub fn dealloc_pages(&self, start: usize, pages: usize, kind: UsageKind) {
        if engine::free_frames(start, pages) {
            uncount(kind, pages * PAGE_SIZE);
        }
    }

    /// Returns the number of bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.used_pages() * PAGE_SIZE
    }

    /// Returns the number of free bytes.
    pub fn available_bytes(&self) -> usize {
        self.available_pages() * PAGE_SIZE
    }

    /// Returns the number of pages in use.
    pub fn used_pages(&self) -> usize {
        engine::used_frames()
    }

    /// Returns the number of pages that are free, apart from the few that the engine uses for itself.
    pub fn available_pages(&self) -> usize {
        engine::online_frames().saturating_sub(engine::used_frames())
    }

    /// Returns the number of bytes in use, by kind.
    pub fn usages(&self) -> Usages {
        Usages(array::from_fn(|kind| USAGES[kind].load(Ordering::Relaxed)))
    }
}

impl AllocatorOps for GlobalAllocator {
    fn name(&self) -> &'static str {
        self.name()
    }
    fn init(&self, start_vaddr: usize, size: usize) -> AllocResult {
        self.init(start_vaddr, size)
    }
    fn add_memory(&self, start_vaddr: usize, size: usize) -> AllocResult {
        self.add_memory(start_vaddr, size)
    }
    fn alloc(&self, layout: Layout) -> AllocResult<NonNull<u8>> {
        self.alloc(layout)
    }
    fn dealloc(&self, pos: NonNull<u8>, layout: Layout) {
        self.dealloc(pos, layout);
    }
    fn alloc_pages(&self, num_pages: usize, align: usize, kind: UsageKind) -> AllocResult<usize> {
        self.alloc_pages(num_pages, align, kind)
    }
    fn alloc_dma32_pages(
        &self,
        num_pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize> {
        self.alloc_dma32_pages(num_pages, align, kind)
    }
    fn alloc_pages_at(
        &self,
        start: usize,
        num_pages: usize,
        align: usize,
        kind: UsageKind,
    ) -> AllocResult<usize> {
        self.alloc_pages_at(start, num_pages, align, kind)
    }
    fn dealloc_pages(&self, pos: usize, num_pages: usize, kind: UsageKind) {
        self.dealloc_pages(pos, num_pages, kind);
    }
    fn used_bytes(&self) -> usize {
        self.used_bytes()
    }
    fn available_bytes(&self) -> usize {
        self.available_bytes()
    }
    fn used_pages(&self) -> usize {
        self.used_pages()
    }
    fn available_pages(&self) -> usize {
        self.available_pages()
    }
    fn usages(&self) -> Usages {
        self.usages()
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

impl fmt::Debug for GlobalAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hotmem")
    }
}
