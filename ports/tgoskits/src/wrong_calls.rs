//! Calls the allocator wrongly, and checks that it refuses each call, counts the refusal, and loses
//! nothing.

use ax_alloc::{
    AllocError, AllocResult, UsageKind, global_add_memory, global_allocator, global_init,
    refused_frees,
};
use ax_hal::mem::phys_to_virt;

const PAGE: usize = 4096;

/// The number of frees that [`make`] makes wrongly.
pub const WRONG_FREES: u64 = 7;

/// What a wrong call must not change: pages in use, and bytes by kind.
fn state() -> [usize; 4] {
    let usages = global_allocator().usages();
    let kinds = [UsageKind::Dma, UsageKind::PageCache, UsageKind::Global];
    let [dma, cache, global] = kinds.map(|kind| usages.get(kind));
    [global_allocator().used_pages(), dma, cache, global]
}

/// Makes the wrong calls. Returns how many frees must have been refused.
///
/// # Panics
/// Panics if a call is carried out, or changes something.
pub fn make() -> u64 {
    wrong_frees() + wrong_memory()
}

fn wrong_frees() -> u64 {
    let allocator = global_allocator();
    let before = (state(), refused_frees());
    let start = allocator.alloc_pages(8, PAGE, UsageKind::Dma).expect("memory is free");
    let in_use = state();
    // Longer than the memory is; not at the start of a page; not in the linear map; beyond its end.
    for (start, pages) in [(start, 1 << 40), (start + 8, 1), (0, 1), (usize::MAX - 4095, 1)] {
        allocator.dealloc_pages(start, pages, UsageKind::Dma);
        assert_eq!(state(), in_use, "{pages} pages from {start:#x}");
    }
    allocator.dealloc_pages(start, 8, UsageKind::Dma);
    // A second time, and a part of it.
    allocator.dealloc_pages(start, 8, UsageKind::Dma);
    allocator.dealloc_pages(start + PAGE, 1, UsageKind::Dma);
    assert_eq!(state(), before.0);
    // Pages of another kind are freed, and no count wraps.
    let start = allocator.alloc_pages(1, PAGE, UsageKind::Dma).expect("memory is free");
    allocator.dealloc_pages(start, 1, UsageKind::PageCache);
    let [used, dma, cache, _] = state();
    assert_eq!((used, dma, cache), (before.0[0], before.0[1] + PAGE, before.0[2]));
    refused_frees() - before.1
}

fn wrong_memory() -> u64 {
    let before = (state(), global_allocator().available_pages(), refused_frees());
    let used = global_allocator().alloc_pages(512, 512 * PAGE, UsageKind::Global);
    let used = used.expect("memory is free");
    let end = phys_to_virt((1 << 52).into()).as_usize();
    let results: [AllocResult; 5] = [
        // A second time.
        global_init(used, PAGE),
        // Memory that was added before, of which a part is in use.
        global_add_memory(used - 512 * PAGE, 1024 * PAGE),
        // Memory that page tables cannot map, and memory that ends beyond the last address.
        global_add_memory(end, 512 * PAGE),
        global_add_memory(used, usize::MAX),
        // Less than a pageblock where no memory is, which the engine could not use.
        global_add_memory(phys_to_virt((1 << 40).into()).as_usize(), PAGE),
    ];
    let expected = [
        AllocError::AlreadyInitialized,
        AllocError::MemoryOverlap,
        AllocError::InvalidParam,
        AllocError::InvalidParam,
        AllocError::InvalidParam,
    ];
    assert_eq!(results, expected.map(Err));
    global_allocator().dealloc_pages(used, 512, UsageKind::Global);
    assert_eq!((state(), global_allocator().available_pages()), (before.0, before.1));
    refused_frees() - before.2
}
