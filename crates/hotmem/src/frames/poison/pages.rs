//! Holds the part of the table of poisoned frames that does not fit into the instance: a list of
//! frames, to which the control path adds. No frame leaves the list.

use crate::addr::PfnRange;
use crate::geometry::FRAME_SIZE;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use crate::words::DirectMap;

#[allow(clippy::cast_possible_truncation, reason = "512")]
const PAGE_ENTRIES: usize = FRAME_SIZE as usize / size_of::<u64>() - 1;

/// The list of pages, the last that was added first.
pub(in crate::frames) struct PoisonPages {
    first: AtomicPtr<Page>,
}

/// A page. The all-zero value is valid: it lists no frame.
#[repr(C, align(4096))]
struct Page {
    entries: [AtomicU64; PAGE_ENTRIES],
    next: AtomicPtr<Page>,
}

const _: () = assert!(size_of::<Page>() as u64 == FRAME_SIZE);

impl PoisonPages {
    pub(in crate::frames) const fn none() -> PoisonPages {
        PoisonPages { first: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn pages(&self) -> impl Iterator<Item = &Page> {
        // Acquire, for both loads, pairs with the Release in `add`.
        // SAFETY: `add` has put a page at each of these pointers, and no page leaves the list.
        let load = |pointer: &AtomicPtr<Page>| unsafe { pointer.load(Ordering::Acquire).as_ref() };
        core::iter::successors(load(&self.first), move |page| load(&page.next))
    }

    /// Returns the entries of all pages.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &AtomicU64> {
        self.pages().flat_map(|page| page.entries.iter())
    }

    /// Returns the frames that hold the pages.
    pub(crate) fn frames(&self, direct_map: DirectMap) -> impl Iterator<Item = PfnRange> {
        self.pages().filter_map(move |page| {
            let start = direct_map.frame_at(core::ptr::from_ref(page).cast_mut().cast())?;
            PfnRange::with_len(start, 1)
        })
    }

    /// Adds a page. Control path only.
    ///
    /// # Safety
    /// `memory` points to a frame, which belongs to this list from now on, for ever.
    pub(crate) unsafe fn add(&self, memory: *mut u8) {
        let page: *mut Page = memory.cast();
        // SAFETY: the caller promises a frame, which has the size and the alignment of a page.
        unsafe {
            page.write_bytes(0, 1);
            (*page).next.store(self.first.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.first.store(page, Ordering::Release);
    }
}
