//! Checks that pages can be moved while other CPUs write to them.
//!
//! Each CPU counts its writes to each page. From time to time the dirty bits of all pages are read
//! and cleared. When they are read the next time, exactly the pages that were written since must be
//! dirty, even if the pages have moved meanwhile. In the end each page must hold as many writes as
//! were counted.

use super::fatal::give_up;
use super::memory::{AddressSpace, FRAME_WORDS};
use super::migratable_window::{BATCH_PAGES, MigratableWindow};
use super::progress::WATCHDOG;
use super::quiesce;
use super::take_once::TakeOnce;
use super::this_cpu::ThisCpu;
use crate::arch::{LAYOUT, answer_flush, flush_all};
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use hotmem::{AllocRequest, Bytes, Migration, Pfn, PfnRange, Platform};
use hotmem_directmap::{Attributes, PAGE_BYTES};
use hotmem_guest::cmdline::MAX_WRITTEN;
use hotmem_guest::event::Event;
use hotmem_guest::frame_words;
use hotmem_guest::pattern::mix_bits;
use hotmem_guest::to_usize;
use hotmem_pgtable::target::Batch;

/// The virtual address of the first page.
const BASE: u64 = LAYOUT.written_pages;
const MAX_PAGES: usize = to_usize(MAX_WRITTEN.0 / PAGE_BYTES);
/// The maximal number of CPUs that write: CPUs 1 to 7. CPU n writes to the words n, n + 64, n +
/// 128, …
const WRITERS: usize = 7;
const STRIDE: u64 = 64;
/// The number of writes after which a CPU checks whether another CPU waits for it.
const BURST: u32 = 16;

/// The pages' frames. A CPU that faults on a page that is not present waits for the lock.
static MEMORY: spin::Mutex<Option<MigratableWindow>> = spin::Mutex::new(None);
/// The batch of the window, which [`open`] takes.
static BATCH: TakeOnce<Batch> = TakeOnce::new(Batch::new());
/// The state of each page when the dirty bits were last cleared.
static DIRTY_CHECKS: spin::Mutex<[DirtyCheck; MAX_PAGES]> =
    spin::Mutex::new([DirtyCheck::UNWRITTEN; MAX_PAGES]);
/// The number of pages that are written to. A page is mapped before this number includes it.
static PAGE_COUNT: AtomicU64 = AtomicU64::new(0);
/// The current phase, which selects the pages that are written to. All accesses are relaxed,
/// because no other data depend on the phase.
static PHASE: AtomicU64 = AtomicU64::new(0);
/// The number of writes of each CPU to each page. Each CPU increments its number after each write.
static WRITE_COUNTS: [[AtomicU32; MAX_PAGES]; WRITERS] =
    [const { [const { AtomicU32::new(0) }; MAX_PAGES] }; WRITERS];

/// The number of writes to a page around the times at which its dirty bit was cleared.
#[derive(Clone, Copy)]
struct DirtyCheck {
    /// The number of writes just before the bit was cleared by the previous check.
    writes_before_last_check: u32,
    /// The number of writes just before the bit was cleared by this check.
    writes_before_clear: u32,
    /// The number of writes after all TLBs were flushed and all earlier writes were counted.
    writes_after_flush: u32,
    /// Whether the bit was set when this check cleared it.
    dirty: bool,
}

/// A CPU that writes.
pub(crate) struct Writer {
    cpu: usize,
    random_state: u64,
}

impl Writer {
    pub(crate) fn new(cpu: usize) -> Self {
        Writer { cpu, random_state: mix_bits(cpu as u64) }
    }

    /// Increments up to [`BURST`] words of the pages.
    pub(crate) fn write_some(&mut self) {
        let Some(counts) = self.cpu.checked_sub(1).and_then(|writer| WRITE_COUNTS.get(writer))
        else {
            return;
        };
        for _ in 0..BURST {
            // Acquire pairs with the Release in `grow`: this CPU sees that the pages are mapped and
            // zeroed.
            let pages = PAGE_COUNT.load(Acquire);
            self.random_state = mix_bits(self.random_state);
            let Some(page) = self.random_state.checked_rem(pages) else { return };
            if !is_written_in(page, PHASE.load(Relaxed)) {
                continue;
            }
            let word =
                self.cpu as u64 + (self.random_state >> 32) % (PAGE_BYTES / 8) / STRIDE * STRIDE;
            let address = to_usize(BASE + page * PAGE_BYTES + word * 8);
            let pointer = core::ptr::with_exposed_provenance_mut::<u64>(address);
            // SAFETY: the page is mapped. If it is being moved, the page fault waits until it is
            // mapped again. Only this CPU writes to the word.
            unsafe { pointer.write_volatile(pointer.read_volatile().wrapping_add(1)) }
            let count = &counts[to_usize(page)];
            // Release pairs with the Acquire in `write_count` and `stop`, so that a CPU that reads
            // this count sees the write.
            count.store(count.load(Relaxed).wrapping_add(1), Release);
        }
    }
}

/// Returns whether a page is written to in this phase. A quarter of all pages are written to. The
/// others must keep their contents, and their dirty bits must stay clear.
fn is_written_in(page: u64, phase: u64) -> bool {
    mix_bits(page ^ phase << 32).is_multiple_of(4)
}

/// Opens the window that contains the pages. The window's page tables lie below `tables_below`.
pub(crate) fn open(space: &AddressSpace, tables_below: Pfn) {
    let batch = BATCH.take();
    *MEMORY.lock() = Some(MigratableWindow::new(
        space,
        BASE,
        Attributes::UNUSED_KERNEL_DATA,
        tables_below,
        batch,
    ));
}

/// Handles a page fault: waits while the page is being moved. Returns whether the page is mapped
/// then.
pub(crate) fn wait_for_page(address: u64) -> bool {
    let cpu = ThisCpu.cpu();
    // The CPU that boots moves the pages and does not write to them, so it never faults on one.
    if cpu == 0 {
        return false;
    }
    loop {
        if let Some(mut memory) = MEMORY.try_lock() {
            return memory.as_mut().is_some_and(|memory| {
                let window = memory.window();
                window.page_of(address).is_some_and(|page| window.frame(page).is_some())
            });
        }
        // The CPU that holds the lock may be waiting for this one to flush.
        answer_flush(cpu);
        core::hint::spin_loop();
    }
}

/// Moves all pages, possibly to memory that was added since. Then maps new pages until `wanted`
/// bytes are mapped.
pub(crate) fn grow(wanted: Bytes) {
    let mut memory = MEMORY.lock();
    let Some(memory) = memory.as_mut() else { return };
    let mut page = PAGE_COUNT.load(Relaxed);
    let mut next = 0;
    while next < page {
        let mut batch = [0; BATCH_PAGES];
        let len = batch.iter_mut().zip(next..page).map(|(entry, page)| *entry = page).count();
        next += len as u64;
        // A page that cannot be moved stays where it is.
        let _ = memory.move_pages(&batch[..len], AllocRequest::frames(1).movable());
        PHASE.fetch_add(1, Relaxed);
    }
    while page < (wanted.0 / PAGE_BYTES).min(MAX_PAGES as u64) && memory.map(page).is_some() {
        let frame = memory.window().frame(page).unwrap_or(Pfn::ZERO);
        // SAFETY: the frame was allocated for the page just now, and no CPU writes to the page
        // until `PAGE_COUNT` includes it.
        unsafe { FRAME_WORDS.pointer(frame).write_bytes(0, to_usize(frame_words::FRAME_WORDS)) }
        page += 1;
    }
    PAGE_COUNT.store(page, Release);
    WATCHDOG.progress();
}

/// Moves pages away from the frames of `used`. Returns `None` if no page maps a frame of `used`.
pub(crate) fn migrate(used: PfnRange) -> Option<Migration> {
    let answer = MEMORY.lock().as_mut()?.migrate(used)?;
    PHASE.fetch_add(1, Relaxed);
    Some(answer)
}

/// Reads and clears the dirty bits of all pages, and checks that exactly the pages are dirty that
/// were written since the last check.
pub(crate) fn check_dirty_bits() -> Event<'static> {
    let mut memory = MEMORY.lock();
    let (mut checks, pages) = (DIRTY_CHECKS.lock(), PAGE_COUNT.load(Relaxed));
    let moved = memory.as_ref().map_or(Bytes::ZERO, MigratableWindow::moved_bytes);
    for (page, check) in (0..pages).zip(checks.iter_mut()) {
        check.writes_before_clear = write_count(page);
        check.dirty = memory.as_mut().is_some_and(|memory| memory.window().take_dirty(page));
        let writes_since_flush = check.writes_before_clear.wrapping_sub(check.writes_after_flush);
        if writes_since_flush > 0 && !check.dirty {
            give_up(format_args!(
                "page {page} was written {writes_since_flush} times and is not dirty"
            ));
        }
    }
    // Release the lock before the flush, because CPUs that fault on a page wait for the lock.
    drop(memory);
    flush_all();
    // A CPU may have been interrupted between a write and its count. After this call it has
    // counted that write.
    quiesce::finish_steps_of_other_cpus();
    let (mut dirty, mut clean, mut writes) = (0, 0, 0);
    for (page, check) in (0..pages).zip(checks.iter_mut()) {
        // This number includes every write that set the dirty bit before the flush.
        check.writes_after_flush = write_count(page);
        let writes_before_last_check =
            core::mem::replace(&mut check.writes_before_last_check, check.writes_before_clear);
        if check.writes_after_flush == writes_before_last_check && check.dirty {
            give_up(format_args!("page {page} is dirty and no CPU has written to it"));
        }
        let sum = if check.dirty { &mut dirty } else { &mut clean };
        *sum += 1;
        writes += u64::from(check.writes_after_flush);
    }
    WATCHDOG.progress();
    Event::Written { pages, writes, moved, dirty, clean }
}

/// Stops all CPUs, and checks that each page holds the number of writes that were counted. Returns
/// the number of writes.
pub(crate) fn stop() -> u64 {
    let pages = PAGE_COUNT.swap(0, Relaxed);
    // A CPU that has answered is not in the middle of a write.
    quiesce::free_frames_of_other_cpus();
    let mut memory = MEMORY.lock();
    let mut writes = 0;
    for page in 0..pages {
        let frame = memory.as_mut().and_then(|memory| memory.window().frame(page));
        let Some(frame) = frame else { give_up(format_args!("page {page} has no frame")) };
        let mut sums = [0u64; to_usize(STRIDE)];
        for index in 0..frame_words::FRAME_WORDS {
            // SAFETY: the page's frame is mapped, and no CPU writes to the page any more.
            sums[to_usize(index % STRIDE)] += unsafe { FRAME_WORDS.read(frame, index) };
        }
        for (cpu, &sum) in sums.iter().enumerate() {
            let counts = cpu.checked_sub(1).and_then(|writer| WRITE_COUNTS.get(writer));
            let count = counts.map_or(0, |counts| counts[to_usize(page)].load(Acquire));
            if sum != u64::from(count) {
                give_up(format_args!(
                    "page {page}: CPU {cpu} wrote {count} times, the page holds {sum} of its writes"
                ));
            }
            writes += sum;
        }
        WATCHDOG.progress();
    }
    writes
}

/// Returns how many writes to a page all CPUs have counted.
fn write_count(page: u64) -> u32 {
    let load = |counts: &[AtomicU32; MAX_PAGES]| counts[to_usize(page)].load(Acquire);
    WRITE_COUNTS.iter().map(load).fold(0, u32::wrapping_add)
}

impl DirtyCheck {
    const UNWRITTEN: DirtyCheck = DirtyCheck {
        writes_before_last_check: 0,
        writes_before_clear: 0,
        writes_after_flush: 0,
        dirty: false,
    };
}
