//! Asks the kernel to free pages when an allocation finds no memory.

use crate::{AllocError, AllocResult};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Frees pages for an allocation that has failed. Returns how many.
pub type PageReclaimFn = fn(num_pages: usize) -> usize;

static RECLAIM: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// Whether a CPU is calling the function, so that it is not called recursively.
static RECLAIMING: AtomicBool = AtomicBool::new(false);

/// Sets the function that frees pages when an allocation fails.
pub fn register_page_reclaim_fn(reclaim: PageReclaimFn) {
    // Release pairs with Acquire in `try_page_reclaim`.
    RECLAIM.store(reclaim as *mut (), Ordering::Release);
}

/// Calls the function that frees pages, unless it is running already. Returns how many it freed.
pub fn try_page_reclaim(num_pages: usize) -> usize {
    // Acquire pairs with Release in `register_page_reclaim_fn`.
    let reclaim = RECLAIM.load(Ordering::Acquire);
    // Acquire pairs with Release below.
    if reclaim.is_null() || RECLAIMING.swap(true, Ordering::Acquire) {
        return 0;
    }
    // SAFETY: `register_page_reclaim_fn` has stored a function of this type.
    let freed = unsafe { core::mem::transmute::<*mut (), PageReclaimFn>(reclaim)(num_pages) };
    // Release pairs with Acquire above.
    RECLAIMING.store(false, Ordering::Release);
    freed
}

/// Allocates. If no memory is free, calls the function that frees pages, and tries again.
pub(crate) fn allocate<T>(
    pages: usize,
    mut attempt: impl FnMut() -> AllocResult<T>,
) -> AllocResult<T> {
    for _ in 0..4 {
        match attempt() {
            Err(AllocError::NoMemory) => {}
            result => return result,
        }
        if try_page_reclaim(pages.max(16)) == 0 {
            break;
        }
    }
    // Another CPU may have freed pages meanwhile.
    attempt()
}
