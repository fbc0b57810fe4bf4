//! The kernel's heap, which grows with the machine and stands in nobody's way.
//!
//! Its addresses are a window's: memory under live objects is unplugged all the same, since their
//! frames are copied elsewhere and the objects stay where they were. What a device was told the
//! physical address of is pinned, and named when it stands in the way.
//!
//! Only the CPU that boots uses the heap, and not while it moves it: nobody meets a missing page.

use super::mapped::Mapped;
use super::memory::AddressSpace;
use core::alloc::Layout;
use core::ptr::NonNull;
use hotmem::{Bytes, Migration, Pfn, PfnRange};
use hotmem_directmap::{PAGE_BYTES, UNUSED};
use hotmem_guest::layout::WINDOW_PAGES;
use hotmem_guest::to_usize;
use hotmem_pgtable::Flags;
use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, Pages> = TalcLock::new(Pages::none());

/// Where the window starts: the second half of the kernel's own 16 TiB is the image's.
const BASE: u64 = 0xffff_f000_0000_0000;
/// Pages that the heap takes and gives back at a time, at least.
const STEP: u64 = 64;
const STEP_BYTES: u64 = STEP * PAGE_BYTES;

/// The pages from the window's start on that have frames: what the allocator allocates from.
#[derive(Debug)]
struct Pages {
    memory: Option<Mapped>,
    mapped: u64,
    /// The heap's end, once there is one.
    end: Option<NonNull<u8>>,
}

// SAFETY: the pointer is an address in the window, which all CPUs see alike.
unsafe impl Send for Pages {}

/// What the heap is doing.
pub(crate) struct HeapUse {
    /// Memory behind it.
    pub(crate) mapped: Bytes,
    /// What was moved under it so far.
    pub(crate) moved: Bytes,
}

/// Opens the heap: until then it has nothing to give. Its page tables lie below `tables_below`.
pub(crate) fn open(space: &AddressSpace, tables_below: Pfn) {
    // Accessed and dirty from the start: no access has to set them.
    let flags = UNUSED | Flags::USED;
    HEAP.lock().source.memory = Some(Mapped::new(space, BASE, flags, tables_below));
}

/// Returns how much there is behind the heap.
pub(crate) fn usage() -> HeapUse {
    let Pages { mapped, memory, .. } = &HEAP.lock().source;
    let moved = memory.as_ref().map_or(Bytes::ZERO, Mapped::moved);
    HeapUse { mapped: Bytes(mapped * PAGE_BYTES), moved }
}

/// Has the frame under this object's start stay, as for a device that was told of it, or lets it
/// go.
pub(crate) fn pin(object: *const u8, pinned: bool) {
    if let Some(memory) = &mut HEAP.lock().source.memory {
        let window = memory.window();
        if let Some(page) = window.page_of(object.addr() as u64) {
            window.pin(page, pinned);
        }
    }
}

/// Returns the engine wants these frames, a run within one pageblock, to be free. Those that are
/// the heap's are moved elsewhere; `None` if there are none among them.
pub(crate) fn migrate(used: PfnRange) -> Option<Migration> {
    HEAP.lock().source.memory.as_mut()?.migrate(used)
}

impl Pages {
    const fn none() -> Self {
        Pages { memory: None, mapped: 0, end: None }
    }

    /// Puts frames behind that many more pages; `None` if there are not this many, and nothing is
    /// changed.
    fn grow(&mut self, pages: u64) -> Option<()> {
        let wanted = self.mapped..self.mapped.checked_add(pages)?;
        let memory = self.memory.as_mut()?;
        for page in wanted.clone() {
            if memory.map(page).is_none() {
                self.shrink_to(wanted.start);
                return None;
            }
            self.mapped += 1;
        }
        Some(())
    }

    /// Takes the frames away from behind all but the first pages.
    fn shrink_to(&mut self, pages: u64) {
        if let Some(memory) = &mut self.memory {
            memory.unmap(pages..self.mapped);
            self.mapped = pages;
        }
    }
}

// SAFETY: nothing here uses the heap. What is claimed is the window's, has frames and stays so
// until it has been given back by `resize`.
unsafe impl Source for Pages {
    const TRACK_HEAP_END: bool = true;

    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        // What the first heap takes for itself, and the most that alignment can cost.
        let own = talc::min_first_heap_size::<B>() + talc::base::CHUNK_UNIT;
        let bytes = layout.size().checked_add(layout.align()).and_then(|sum| sum.checked_add(own));
        let pages = (bytes.ok_or(())? as u64).div_ceil(STEP_BYTES) * STEP;
        if pages > WINDOW_PAGES - talc.source.mapped {
            return Err(());
        }
        talc.source.grow(pages).ok_or(())?;
        let size = to_usize(talc.source.mapped * PAGE_BYTES);
        let base = core::ptr::with_exposed_provenance_mut::<u8>(to_usize(BASE));
        // SAFETY: all pages up to `mapped` have frames, and nobody else uses the window; the end is
        // the one that was returned last.
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
        let used = (free.addr() as u64).saturating_sub(BASE).next_multiple_of(STEP_BYTES);
        let pages = used / PAGE_BYTES;
        if pages >= self.mapped {
            return end;
        }
        self.shrink_to(pages);
        let new_end = core::ptr::with_exposed_provenance_mut(to_usize(BASE + used));
        self.end = NonNull::new(new_end);
        new_end
    }
}
