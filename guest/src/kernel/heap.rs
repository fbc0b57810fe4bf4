//! Implements the kernel's heap, whose memory can be removed while it is in use.
//!
//! The heap lies in a *window*, a reserved range of virtual addresses. Memory under live objects can be
//! unplugged, because their frames are migrated while the objects keep their addresses. Memory whose
//! physical address a device knows is pinned, and is reported if it blocks a removal.
//!
//! Only the CPU that boots uses the heap and migrates its pages. It does not use the heap during a
//! migration, so no access faults.

use super::memory::AddressSpace;
use super::migratable_window::MigratableWindow;
use super::take_once::TakeOnce;
use crate::arch::LAYOUT;
use core::alloc::Layout;
use core::ptr::NonNull;
use hotmem::{Bytes, Migration, Pfn, PfnRange};
use hotmem_directmap::{Attributes, PAGE_BYTES};
use hotmem_guest::to_usize;
use hotmem_pgtable::target::Batch;
use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, Pages> = TalcLock::new(Pages::unmapped());

/// The buffer in which the window collects its changes of page tables. [`open`] takes it.
static PAGE_TABLE_BATCH: TakeOnce<Batch> = TakeOnce::new(Batch::new());

/// The start of the window.
const BASE: u64 = LAYOUT.heap;
/// The minimal number of pages by which the heap grows or shrinks.
const GROWTH_PAGES: u64 = 64;
const GROWTH_BYTES: u64 = GROWTH_PAGES * PAGE_BYTES;

/// The mapped pages at the window's start, from which the allocator allocates.
#[derive(Debug)]
struct Pages {
    memory: Option<MigratableWindow>,
    mapped_pages: u64,
    /// The heap's end, or `None` if the heap has no memory.
    end: Option<NonNull<u8>>,
}

// SAFETY: the pointer is an address in the window, which is the same for all CPUs.
unsafe impl Send for Pages {}

/// The heap's use of memory.
pub(crate) struct HeapUse {
    /// The amount of memory that the heap maps.
    pub(crate) mapped: Bytes,
    /// The amount of memory that was migrated under the heap since boot.
    pub(crate) migrated: Bytes,
}

/// Opens the heap. Before that, allocations fail. The heap's page tables lie below `tables_below`.
pub(crate) fn open(space: &AddressSpace, tables_below: Pfn) {
    // Accessed and Dirty are set in advance, so that no access has to set them.
    let attributes = Attributes::KERNEL_DATA;
    let batch = PAGE_TABLE_BATCH.take();
    HEAP.lock().source.memory =
        Some(MigratableWindow::new(space, BASE, attributes, tables_below, batch));
}

/// Returns the heap's use of memory.
pub(crate) fn usage() -> HeapUse {
    let Pages { mapped_pages, memory, .. } = &HEAP.lock().source;
    let migrated = memory.as_ref().map_or(Bytes::ZERO, MigratableWindow::moved_bytes);
    HeapUse { mapped: Bytes(mapped_pages * PAGE_BYTES), migrated }
}

/// Pins or unpins the frame at the start of `object`. A driver pins a frame while a device accesses
/// it.
pub(crate) fn pin(object: *const u8, pinned: bool) {
    if let Some(memory) = &mut HEAP.lock().source.memory {
        let window = memory.window();
        if let Some(page) = window.page_of(object.addr() as u64) {
            window.pin(page, pinned);
        }
    }
}

/// Migrates the frames of `used` that belong to the heap. `used` is a run within one pageblock.
/// Returns `None` if no frame of `used` belongs to the heap.
pub(crate) fn migrate(used: PfnRange) -> Option<Migration> {
    HEAP.lock().source.memory.as_mut()?.migrate(used)
}

impl Pages {
    const fn unmapped() -> Self {
        Pages { memory: None, mapped_pages: 0, end: None }
    }

    /// Maps `pages` more pages. If there are not enough frames, maps no page and returns `None`.
    fn grow(&mut self, pages: u64) -> Option<()> {
        let new_pages = self.mapped_pages..self.mapped_pages.checked_add(pages)?;
        let memory = self.memory.as_mut()?;
        for page in new_pages.clone() {
            if memory.map(page).is_none() {
                self.shrink_to(new_pages.start);
                return None;
            }
            self.mapped_pages += 1;
        }
        Some(())
    }

    /// Unmaps all pages except the first `pages`.
    fn shrink_to(&mut self, pages: u64) {
        if let Some(memory) = &mut self.memory {
            memory.unmap(pages..self.mapped_pages);
            self.mapped_pages = pages;
        }
    }
}

// SAFETY: these methods do not allocate from the heap. Claimed memory belongs to the window, and
// stays mapped until `resize` unmaps it.
unsafe impl Source for Pages {
    const TRACK_HEAP_END: bool = true;

    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        // What the allocator needs for its own data when it gets its first memory, and one unit that
        // the alignment may cost.
        let overhead = talc::min_first_heap_size::<B>() + talc::base::CHUNK_UNIT;
        let bytes =
            layout.size().checked_add(layout.align()).and_then(|sum| sum.checked_add(overhead));
        let pages = (bytes.ok_or(())? as u64).div_ceil(GROWTH_BYTES) * GROWTH_PAGES;
        if pages > LAYOUT.window_pages - talc.source.mapped_pages {
            return Err(());
        }
        talc.source.grow(pages).ok_or(())?;
        let size = to_usize(talc.source.mapped_pages * PAGE_BYTES);
        let base = core::ptr::with_exposed_provenance_mut::<u8>(to_usize(BASE));
        // SAFETY: all pages up to `mapped_pages` are mapped, and nothing else uses the window.
        // `end` is the heap's end that `claim`, `extend` or `resize` has returned last.
        let end = unsafe {
            match talc.source.end {
                None => talc.claim(base, size).ok_or(())?,
                Some(end) => talc.extend(end, base.wrapping_add(size)),
            }
        };
        talc.source.end = Some(end);
        Ok(())
    }

    unsafe fn resize(&mut self, free: *mut u8, end: *mut u8, _: bool) -> *mut u8 {
        let used = (free.addr() as u64).saturating_sub(BASE).next_multiple_of(GROWTH_BYTES);
        let pages = used / PAGE_BYTES;
        if pages >= self.mapped_pages {
            return end;
        }
        self.shrink_to(pages);
        let new_end = core::ptr::with_exposed_provenance_mut(to_usize(BASE + used));
        self.end = NonNull::new(new_end);
        new_end
    }
}
