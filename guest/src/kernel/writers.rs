//! Other CPUs write through addresses, and the memory behind these moves.
//!
//! Each counts what it writes, page by page. From time to time Dirty is taken from all pages: what
//! was written since then must be dirty the next time, and nothing else may be, wherever pages have
//! moved meanwhile. In the end each page must hold what was counted.

use super::mapped::{Mapped, TOGETHER};
use super::memory::{AddressSpace, FRAME_WORDS};
use super::smp::{self, ThisCpu};
use super::{WATCHDOG, churn, give_up};
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use hotmem::{Bytes, Migration, Pfn, PfnRange, Platform, Want};
use hotmem_directmap::{PAGE_BYTES, UNUSED};
use hotmem_guest::cmdline::MAX_WRITTEN;
use hotmem_guest::event::Event;
use hotmem_guest::frame_words;
use hotmem_guest::pattern::mix;
use hotmem_guest::to_usize;

/// Where the pages are seen.
const BASE: u64 = 0xffff_f080_0000_0000;
const MAX_PAGES: usize = to_usize(MAX_WRITTEN.0 / PAGE_BYTES);
/// CPUs that write at most, from number 1 on; each has every 64th word, from its number on.
const WRITERS: usize = 7;
const STRIDE: u64 = 64;
/// Writes before somebody who waits for this CPU is answered.
const BURST: u32 = 16;

/// What is behind the addresses. Whoever meets a missing page waits for the lock.
static MEMORY: spin::Mutex<Option<Mapped>> = spin::Mutex::new(None);
/// What was seen when Dirty was last taken.
static SEEN: spin::Mutex<[Seen; MAX_PAGES]> = spin::Mutex::new([Seen::NOTHING; MAX_PAGES]);
/// Pages that are written to: they are there when this says so.
static PAGES: AtomicU64 = AtomicU64::new(0);
/// Which of them, for some time. Nothing is ordered by it.
static PHASE: AtomicU64 = AtomicU64::new(0);
/// What each CPU has written to each page: counted after it is written, by this CPU alone.
static COUNTS: [[AtomicU32; MAX_PAGES]; WRITERS] =
    [const { [const { AtomicU32::new(0) }; MAX_PAGES] }; WRITERS];

/// What had been counted on a page when its Dirty was taken.
#[derive(Clone, Copy)]
struct Seen {
    /// Before it was; this time, while that is not yet over.
    before: u32,
    now: u32,
    /// When all CPUs had forgotten it, and counted what they wrote before they had.
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

    /// Writes some words, if there is anything to write to: one more than they hold.
    pub(crate) fn write_some(&mut self) {
        let Some(counts) = self.cpu.checked_sub(1).and_then(|writer| COUNTS.get(writer)) else {
            return;
        };
        for _ in 0..BURST {
            // Acquire, from the release in `grow`: the pages are there, and empty.
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
            // Release, to the acquire in `counted`: what is counted has been written.
            count.store(count.load(Relaxed).wrapping_add(1), Release);
        }
    }
}

/// A quarter of all pages at a time: the others keep what they have, their bits among it.
fn is_written_in(page: u64, phase: u64) -> bool {
    mix(page ^ phase << 32).is_multiple_of(4)
}

/// Opens the window on the addresses; its tables lie below `tables_below`.
pub(crate) fn open(space: &AddressSpace, tables_below: Pfn) {
    *MEMORY.lock() = Some(Mapped::new(space, BASE, UNUSED, tables_below));
}

/// This address was missed. Whether it is there now: once it is not being moved.
pub(crate) fn settle_fault(address: u64) -> bool {
    let cpu = ThisCpu.cpu();
    // The CPU that boots is the one that moves pages, and misses none.
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
        // Whoever holds the lock may be waiting for this.
        smp::answer_flush(cpu);
        core::hint::spin_loop();
    }
}

/// There may be more memory than before: pages that are there move to it, and those that are
/// missing to make `wanted` are put there.
pub(crate) fn grow(wanted: Bytes) {
    let mut memory = MEMORY.lock();
    let Some(memory) = memory.as_mut() else { return };
    let mut page = PAGES.load(Relaxed);
    let mut next = 0;
    while next < page {
        let mut some = [0; TOGETHER];
        let len = some.iter_mut().zip(next..page).map(|(slot, page)| *slot = page).count();
        next += len as u64;
        // What does not move stays.
        let _ = memory.move_pages(&some[..len], Want::frames(1).movable());
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

/// The engine wants these frames to be free; `None` if there is nothing of this on them.
pub(crate) fn migrate(used: PfnRange) -> Option<Migration> {
    let answer = MEMORY.lock().as_mut()?.migrate(used)?;
    PHASE.fetch_add(1, Relaxed);
    Some(answer)
}

/// Takes Dirty from all pages, and finds that it tells what was written since the last time.
pub(crate) fn harvest() -> Event<'static> {
    let mut memory = MEMORY.lock();
    let (mut seen, pages) = (SEEN.lock(), PAGES.load(Relaxed));
    let moved = memory.as_ref().map_or(Bytes::ZERO, Mapped::moved);
    for (page, seen) in (0..pages).zip(seen.iter_mut()) {
        seen.now = counted(page);
        seen.dirty = memory.as_mut().is_some_and(|memory| memory.window().take_dirty(page));
        // Since all CPUs had forgotten that it was dirty.
        let times = seen.now.wrapping_sub(seen.after);
        if times > 0 && !seen.dirty {
            give_up(format_args!("page {page} was written {times} times and is not dirty"));
        }
    }
    // Whoever misses a page is waiting for it.
    drop(memory);
    smp::flush_all();
    // Who was interrupted between a write and counting it has counted it.
    churn::pass();
    let (mut dirty, mut clean, mut writes) = (0, 0, 0);
    for (page, seen) in (0..pages).zip(seen.iter_mut()) {
        // A CPU that made it dirty before it forgot the page has counted its write.
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

/// Has everybody stop, and finds on each page what was counted. Returns how much that was.
pub(crate) fn stop() -> u64 {
    let pages = PAGES.swap(0, Relaxed);
    // Nobody is in the middle of a write when all have answered.
    churn::release_all();
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

/// What all CPUs have counted on a page.
fn counted(page: u64) -> u32 {
    let of = |counts: &[AtomicU32; MAX_PAGES]| counts[to_usize(page)].load(Acquire);
    COUNTS.iter().map(of).fold(0, u32::wrapping_add)
}

impl Seen {
    const NOTHING: Seen = Seen { before: 0, now: 0, after: 0, dirty: false };
}
