//! Checks that pages can be moved while other CPUs write to them.
//!
//! Each CPU counts its writes to each page. From time to time the dirty bits of all pages are read
//! and cleared. The next time, the pages that were written since must be dirty and no others,
//! wherever they have moved meanwhile. In the end each page must hold as many writes as were
//! counted.

use super::fatal::give_up;
use super::flush::{answer_flush, flush_all};
use super::mapped::{Mapped, TOGETHER};
use super::memory::{AddressSpace, FRAME_WORDS};
use super::progress::WATCHDOG;
use super::quiesce;
use super::this_cpu::ThisCpu;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use hotmem::{AllocRequest, Bytes, Migration, Pfn, PfnRange, Platform};
use hotmem_directmap::{PAGE_BYTES, UNUSED};
use hotmem_guest::cmdline::MAX_WRITTEN;
use hotmem_guest::event::Event;
use hotmem_guest::frame_words;
use hotmem_guest::pattern::mix;
use hotmem_guest::to_usize;

/// The virtual address of the first page.
const BASE: u64 = 0xffff_f080_0000_0000;
const MAX_PAGES: usize = to_usize(MAX_WRITTEN.0 / PAGE_BYTES);
/// At most this many CPUs write, from number 1 on. CPU n writes to the words n, n + 64, n + 128, …
const WRITERS: usize = 7;
const STRIDE: u64 = 64;
/// The number of writes after which a CPU checks whether another CPU waits for it.
const BURST: u32 = 16;

/// The pages' frames. A CPU that faults on a missing page waits for the lock.
static MEMORY: spin::Mutex<Option<Mapped>> = spin::Mutex::new(None);
/// The state of each page when the dirty bits were last cleared.
static SEEN: spin::Mutex<[Seen; MAX_PAGES]> = spin::Mutex::new([Seen::NOTHING; MAX_PAGES]);
/// The number of pages that are written to. A page is mapped before it is counted.
static PAGES: AtomicU64 = AtomicU64::new(0);
/// The current phase, which selects the pages that are written to. It orders nothing.
static PHASE: AtomicU64 = AtomicU64::new(0);
/// The number of writes of each CPU to each page. The CPU itself increments it after each write.
static COUNTS: [[AtomicU32; MAX_PAGES]; WRITERS] =
    [const { [const { AtomicU32::new(0) }; MAX_PAGES] }; WRITERS];

/// The number of writes to a page around the times at which its dirty bit was cleared.
#[derive(Clone, Copy)]
struct Seen {
    /// The number just before the bit was cleared the previous time.
    before: u32,
    /// The number just before the bit was cleared this time.
    now: u32,
    /// The number when all CPUs had been flushed and had counted all writes from before the flush.
    after: u32,
    dirty: bool,
}

/// A CPU that writes.
pub(crate) struct Writer {
    cpu: usize,
    random: u64,
}

impl Writer {
    pub(crate) fn new(cpu: usize) -> Self {
        Writer { cpu, random: mix(cpu as u64) }
    }

    /// Increments some words, if there are any pages.
    pub(crate) fn write_some(&mut self) {
        let Some(counts) = self.cpu.checked_sub(1).and_then(|writer| COUNTS.get(writer)) else {
            return;
        };
        for _ in 0..BURST {
            // Acquire pairs with the Release in `grow`: the pages are mapped, and zero.
            let pages = PAGES.load(Acquire);
            self.random = mix(self.random);
            let Some(page) = self.random.checked_rem(pages) else { return };
            if !is_written_in(page, PHASE.load(Relaxed)) {
                continue;
            }
            let word = self.cpu as u64 + (self.random >> 32) % (PAGE_BYTES / 8) / STRIDE * STRIDE;
            let address = to_usize(BASE + page * PAGE_BYTES + word * 8);
            let pointer = core::ptr::with_exposed_provenance_mut::<u64>(address);
            // SAFETY: the page is mapped, or will be when the fault has been settled; the word is
            // this CPU's.
            unsafe { pointer.write_volatile(pointer.read_volatile().wrapping_add(1)) }
            let count = &counts[to_usize(page)];
            // Release pairs with the Acquire in `counted`: a write is visible before it is counted.
            count.store(count.load(Relaxed).wrapping_add(1), Release);
        }
    }
}

/// Returns whether a page is written to in this phase. A quarter of all pages are; the others must
/// keep their contents, and their dirty bits must stay clear.
fn is_written_in(page: u64, phase: u64) -> bool {
    mix(page ^ phase << 32).is_multiple_of(4)
}

/// Opens the window of the pages' addresses, with its page tables below `tables_below`.
pub(crate) fn open(space: &AddressSpace, tables_below: Pfn) {
    *MEMORY.lock() = Some(Mapped::new(space, BASE, UNUSED, tables_below));
}

/// Handles a page fault: waits while the page is being moved, and returns whether it is mapped.
pub(crate) fn wait_for_page(address: u64) -> bool {
    let cpu = ThisCpu.cpu();
    // The CPU that boots moves the pages, so it never faults on one.
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

/// Moves all pages, because there may be more memory than before, and maps new ones until there are
/// `wanted` bytes.
pub(crate) fn grow(wanted: Bytes) {
    let mut memory = MEMORY.lock();
    let Some(memory) = memory.as_mut() else { return };
    let mut page = PAGES.load(Relaxed);
    let mut next = 0;
    while next < page {
        let mut some = [0; TOGETHER];
        let len = some.iter_mut().zip(next..page).map(|(slot, page)| *slot = page).count();
        next += len as u64;
        // A page that cannot be moved stays where it is.
        let _ = memory.move_pages(&some[..len], AllocRequest::frames(1).movable());
        PHASE.fetch_add(1, Relaxed);
    }
    while page < (wanted.0 / PAGE_BYTES).min(MAX_PAGES as u64) && memory.map(page).is_some() {
        let frame = memory.window().frame(page).unwrap_or(Pfn::ZERO);
        // SAFETY: the frame was allocated for the page just now, and nobody writes to it yet.
        unsafe { FRAME_WORDS.pointer(frame).write_bytes(0, to_usize(frame_words::FRAME_WORDS)) }
        page += 1;
    }
    PAGES.store(page, Release);
    WATCHDOG.progress();
}

/// Moves pages off frames that the engine must free. Returns `None` if no page maps these frames.
pub(crate) fn migrate(used: PfnRange) -> Option<Migration> {
    let answer = MEMORY.lock().as_mut()?.migrate(used)?;
    PHASE.fetch_add(1, Relaxed);
    Some(answer)
}

/// Reads and clears the dirty bits of all pages, and checks that exactly the pages that were
/// written since the last time are dirty.
pub(crate) fn check_dirty_bits() -> Event<'static> {
    let mut memory = MEMORY.lock();
    let (mut seen, pages) = (SEEN.lock(), PAGES.load(Relaxed));
    let moved = memory.as_ref().map_or(Bytes::ZERO, Mapped::moved);
    for (page, seen) in (0..pages).zip(seen.iter_mut()) {
        seen.now = counted(page);
        seen.dirty = memory.as_mut().is_some_and(|memory| memory.window().take_dirty(page));
        // Writes since all CPUs were flushed the last time.
        let times = seen.now.wrapping_sub(seen.after);
        if times > 0 && !seen.dirty {
            give_up(format_args!("page {page} was written {times} times and is not dirty"));
        }
    }
    // CPUs that fault on a page wait for the lock.
    drop(memory);
    flush_all();
    // A CPU that was interrupted between a write and its count has counted it after this.
    quiesce::pass();
    let (mut dirty, mut clean, mut writes) = (0, 0, 0);
    for (page, seen) in (0..pages).zip(seen.iter_mut()) {
        // A CPU that made the page dirty before its flush has counted that write.
        seen.after = counted(page);
        let before = core::mem::replace(&mut seen.before, seen.now);
        if seen.after == before && seen.dirty {
            give_up(format_args!("page {page} is dirty and nobody has written to it"));
        }
        let sum = if seen.dirty { &mut dirty } else { &mut clean };
        *sum += 1;
        writes += u64::from(seen.after);
    }
    WATCHDOG.progress();
    Event::Written { pages, writes, moved, dirty, clean }
}

/// Stops all CPUs, and checks that each page holds the number of writes that were counted. Returns
/// the number of writes.
pub(crate) fn stop() -> u64 {
    let pages = PAGES.swap(0, Relaxed);
    // When all CPUs have answered, none is in the middle of a write.
    quiesce::release_all();
    let mut memory = MEMORY.lock();
    let mut writes = 0;
    for page in 0..pages {
        let frame = memory.as_mut().and_then(|memory| memory.window().frame(page));
        let Some(frame) = frame else { give_up(format_args!("page {page} has no frame")) };
        let mut sums = [0u64; to_usize(STRIDE)];
        for index in 0..frame_words::FRAME_WORDS {
            // SAFETY: the page's frame is mapped, and nobody writes to it any more.
            sums[to_usize(index % STRIDE)] += unsafe { FRAME_WORDS.read(frame, index) };
        }
        for (cpu, &sum) in sums.iter().enumerate() {
            let counts = cpu.checked_sub(1).and_then(|writer| COUNTS.get(writer));
            let count = counts.map_or(0, |counts| counts[to_usize(page)].load(Acquire));
            if sum != u64::from(count) {
                give_up(format_args!(
                    "page {page}: CPU {cpu} wrote {count} times, {sum} are there"
                ));
            }
            writes += sum;
        }
        WATCHDOG.progress();
    }
    writes
}

/// Returns how many writes to a page all CPUs have counted.
fn counted(page: u64) -> u32 {
    let of = |counts: &[AtomicU32; MAX_PAGES]| counts[to_usize(page)].load(Acquire);
    COUNTS.iter().map(of).fold(0, u32::wrapping_add)
}

impl Seen {
    const NOTHING: Seen = Seen { before: 0, now: 0, after: 0, dirty: false };
}
