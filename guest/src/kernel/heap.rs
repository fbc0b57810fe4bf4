//! The kernel's heap, which grows with the machine and stands in nobody's way.
//!
//! Its addresses are a window's, and the frames behind them are movable: memory under live objects
//! is unplugged all the same, since their frames are copied elsewhere and the objects stay where
//! they were. Each frame's owner is its page of the window: that is the reverse map. What a device
//! was told the physical address of is pinned, and named when it stands in the way.
//!
//! Only the CPU that boots uses the heap: nobody writes to a page while it is moved.

use super::WATCHDOG;
use super::memory::{AddressSpace, FRAME_WORDS, FRAMES};
use super::smp::{self, ThisCpu};
use core::alloc::Layout;
use core::ptr::NonNull;
use hotmem::{AllocError, Bytes, Migration, Owner, Owners, Pfn, PfnRange, Want};
use hotmem_guest::frame_words;
use hotmem_guest::to_usize;
use hotmem_guest::window::{PAGE_BYTES, PAGES, Window};
use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, Pages> = TalcLock::new(Pages::none());

/// Whose each frame is: a page of the window, by its address.
static OWNERS: Owners<'static, ThisCpu> = Owners::new(&FRAMES);

/// Where the window starts: the second half of the kernel's own 16 TiB is the image's.
const BASE: u64 = 0xffff_f000_0000_0000;
/// Pages that the heap takes and gives back at a time, at least.
const STEP: u64 = 64;
const STEP_BYTES: u64 = STEP * PAGE_BYTES;

/// The pages from the window's start on that have frames: what the allocator allocates from.
#[derive(Debug)]
struct Pages {
    window: Option<Window>,
    /// Tables lie below, in memory that does not go.
    tables_below: Pfn,
    mapped: u64,
    /// The heap's end, once there is one.
    end: Option<NonNull<u8>>,
    moved: u64,
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

/// Opens the heap: until then it has nothing to give.
pub(crate) fn open(space: &mut AddressSpace, tables_below: Pfn) -> Result<(), AllocError> {
    let top = FRAMES.alloc(Want::frames(1).below(tables_below))?.start();
    // SAFETY: the frame was allocated just now, and so are those for more tables; all of them are
    // mapped and nobody else's.
    let window = unsafe { Window::new(top, FRAME_WORDS) };
    space.show(BASE, window.entry());
    let source = &mut HEAP.lock().source;
    source.window = Some(window);
    source.tables_below = tables_below;
    Ok(())
}

/// How much there is behind the heap.
pub(crate) fn usage() -> HeapUse {
    let Pages { mapped, moved, .. } = HEAP.lock().source;
    HeapUse { mapped: Bytes(mapped * PAGE_BYTES), moved: Bytes(moved * PAGE_BYTES) }
}

/// Has the frame under this object's start stay, as for a device that was told of it, or lets it go.
pub(crate) fn pin(object: *const u8, pinned: bool) {
    let page = (object.addr() as u64).checked_sub(BASE).map(|offset| offset / PAGE_BYTES);
    if let (Some(window), Some(page)) = (&mut HEAP.lock().source.window, page) {
        window.pin(page, pinned);
    }
}

/// The engine wants these frames, a run within one pageblock, to be free. Those that are the heap's
/// are copied elsewhere; `None` if there are none among them.
pub(crate) fn migrate(used: PfnRange) -> Option<Migration> {
    // Each page is an owner of its own, so each part is one frame.
    let owned = || {
        OWNERS.runs(used).filter_map(|(part, owner)| {
            let page = owner?.number().saturating_sub(BASE) / PAGE_BYTES;
            Some((part.start(), page))
        })
    };
    let source = &mut HEAP.lock().source;
    let (mut copied, mut obstacle) = (0, None);
    for (frame, page) in owned() {
        obstacle = source.copy_page(page, frame).err();
        if obstacle.is_some() {
            break;
        }
        copied += 1;
    }
    if copied == 0 {
        return obstacle;
    }
    // Once for all of them: other CPUs answer when it suits them.
    smp::flush_all();
    owned().take(copied).for_each(|(frame, _)| give_back(frame));
    source.moved += copied as u64;
    WATCHDOG.progress();
    Some(Migration::Moved)
}

impl Pages {
    const fn none() -> Self {
        Pages { window: None, tables_below: Pfn::ZERO, mapped: 0, end: None, moved: 0 }
    }

    /// Copies what the page's frame holds to another one, and puts that behind the page. The old
    /// one is to be given back once that shows.
    fn copy_page(&mut self, page: u64, from: Pfn) -> Result<(), Migration> {
        let window = self.window.as_mut().ok_or(Migration::Retry)?;
        if window.is_pinned(page) {
            return Err(Migration::Pinned("a pinned page of the kernel's heap"));
        }
        let to = take_frame(page).ok_or(Migration::Retry)?;
        // SAFETY: both frames are the page's, mapped, and two different ones; nobody writes to
        // what the page shows before this CPU has forgotten where it was.
        unsafe {
            let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(to));
            source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
        }
        window.replace(page, to);
        Ok(())
    }

    /// Puts frames behind that many more pages; `None` if there are not so many, and nothing is
    /// changed.
    fn grow(&mut self, pages: u64) -> Option<()> {
        let wanted = self.mapped..self.mapped.checked_add(pages)?;
        let below = Want::frames(1).below(self.tables_below);
        let table = || Some(FRAMES.alloc(below).ok()?.start());
        let window = self.window.as_mut()?;
        for page in wanted.clone() {
            let Some(frame) = take_frame(page) else { break };
            if window.map(page, frame, table).is_err() {
                give_back(frame);
                break;
            }
            self.mapped += 1;
        }
        if self.mapped < wanted.end {
            self.shrink_to(wanted.start);
            return None;
        }
        Some(())
    }

    /// Takes the frames away from behind all but the first pages.
    fn shrink_to(&mut self, pages: u64) {
        let Some(window) = &mut self.window else { return };
        (pages..self.mapped).for_each(|page| window.hide(page));
        smp::flush_all();
        (pages..self.mapped).filter_map(|page| window.take(page)).for_each(give_back);
        self.mapped = pages;
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
        if pages > PAGES - talc.source.mapped {
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

/// A frame that can be moved and that is this page's.
fn take_frame(page: u64) -> Option<Pfn> {
    let frame = FRAMES.alloc(Want::frames(1).movable()).ok()?;
    let owner = Owner::new(BASE + page * PAGE_BYTES)?;
    if OWNERS.set(frame, owner).is_err() {
        give_back(frame.start());
        return None;
    }
    Some(frame.start())
}

fn give_back(frame: Pfn) {
    if let Some(frame) = PfnRange::with_len(frame, 1) {
        OWNERS.clear(frame);
        // Allocated by `take_frame`, once, so this cannot fail.
        let _ = FRAMES.free(frame);
    }
}
