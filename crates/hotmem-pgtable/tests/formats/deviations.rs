//! MMUs that deviate from an architecture's rules. The monitor must notice each.

use crate::Unmapped;
use crate::common::{Arena, LARGE_PAGE_BYTES, PAGE_BYTES, range};
use crate::monitor::Monitor;
use hotmem_addr::Pfn;
use hotmem_pgtable::{
    Aarch64, Attributes, Batch, BatchError, Change, Entry, Flush, Flusher, Level, LocatedEntry,
    Mmu, Native, NativeFault, PageTables, Run, Space, Split, StopReason, Table, VirtRange,
};
use std::sync::atomic::Ordering::Relaxed;

/// How an MMU splits a large page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SplitBy {
    /// As the rules demand.
    Rules,
    /// The entry of the page is replaced by the link, and then flushed.
    ReplaceThenFlush,
    /// The entry is cleared and replaced without a flush between.
    ClearWithoutFlush,
}

/// The MMU of a processor, except for its splits.
struct Deviating<'a> {
    native: Native<&'a Arena, &'a Monitor<'a, Aarch64>>,
    split_by: SplitBy,
}

impl Mmu for Deviating<'_> {
    type Format = Aarch64;
    type Fault = NativeFault<Aarch64>;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.native.table(frame)
    }

    fn get_and_clear(&mut self, batch: &mut Batch<Aarch64>) -> Result<(), BatchError<Self::Fault>> {
        self.native.get_and_clear(batch)
    }

    fn protect(
        &mut self,
        batch: &Batch<Aarch64>,
        change: Change<Aarch64>,
    ) -> Result<(), BatchError<Self::Fault>> {
        self.native.protect(batch, change)
    }

    fn split(&mut self, located: &LocatedEntry<Aarch64>, table: Pfn) -> Result<(), Self::Fault> {
        if self.split_by == SplitBy::Rules {
            return self.native.split(located, table);
        }
        let flags = located.entry.flags();
        let first = located.entry.frame(located.level).unwrap();
        for (number, word) in (0..).zip(self.native.table(table).unwrap()) {
            let frame = first.checked_add(number).unwrap();
            let part = Entry::<Aarch64>::new(frame, flags).bits() | 0b10;
            word.store(part, Relaxed);
        }
        let word = &self.native.table(located.addr.table()).unwrap()[located.addr.index()];
        if self.split_by == SplitBy::ClearWithoutFlush {
            word.store(0, Relaxed);
        }
        word.store(Entry::<Aarch64>::link(table).bits(), Relaxed);
        let range = range(located.virt & !(LARGE_PAGE_BYTES - 1), LARGE_PAGE_BYTES);
        self.native.flush(Flush { range, tables: true })
    }

    fn flush(&mut self, flush: Flush) -> Result<(), Self::Fault> {
        self.native.flush(flush)
    }

    fn retire(&mut self, space: Space<Aarch64>) -> Result<(), Self::Fault> {
        self.native.retire(space)
    }
}

/// Maps a large page of the kernel at the first large page of a space. Returns the space.
fn large_page(arena: &Arena) -> Space<Aarch64> {
    let space = Space::new(arena.table().unwrap(), Level::L4);
    let page = Entry::<Aarch64>::page(Pfn::ZERO, Attributes::KERNEL_DATA, Level::L2).unwrap();
    let mut table = space.root;
    for _ in 0..2 {
        let below = arena.table().unwrap();
        arena.words(table)[0].store(Entry::<Aarch64>::link(below).bits(), Relaxed);
        table = below;
    }
    arena.words(table)[1].store(page.bits(), Relaxed);
    space
}

#[test]
fn a_split_without_break_before_make_is_noticed() {
    for (split_by, is_noticed) in [
        (SplitBy::Rules, false),
        (SplitBy::ReplaceThenFlush, true),
        (SplitBy::ClearWithoutFlush, true),
    ] {
        let arena = Arena::new(16);
        let space = large_page(&arena);
        let monitor = Monitor::new(&arena, space);
        // The processor has used the page.
        monitor.finish();
        let mmu = Deviating { native: Native::new(&arena, &monitor), split_by };
        let (mut batch, mut owner) = (Batch::new(), Unmapped { arena: &arena, runs: Vec::new() });
        let part = range(LARGE_PAGE_BYTES, PAGE_BYTES);
        let mut tables = PageTables::new(mmu, space, &mut batch);
        tables.unmap_range(part, crate::common::KEEP, &mut owner).unwrap();
        let (violations, ..) = monitor.finish();
        let found = violations.iter().any(|violation| violation.contains("without a flush"));
        assert_eq!(found, is_noticed, "{split_by:?}: {violations:?}");
    }
}

#[test]
fn a_split_in_place_is_refused_on_aarch64_and_changes_nothing() {
    let arena = Arena::new(16);
    let space = large_page(&arena);
    let monitor = Monitor::new(&arena, space);
    monitor.finish();
    let native = Native::new(&arena, &monitor).with_split(Split::InPlace);
    let (mut batch, mut owner) = (Batch::new(), Unmapped { arena: &arena, runs: Vec::new() });
    let tables_before = arena.table_count();
    let stopped = PageTables::new(native, space, &mut batch)
        .unmap_range(range(LARGE_PAGE_BYTES, PAGE_BYTES), crate::common::KEEP, &mut owner)
        .unwrap_err();
    assert!(matches!(stopped.reason, StopReason::Mmu(NativeFault::SplitInPlace(_))), "{stopped:?}");
    assert_eq!((monitor.finish(), arena.table_count()), ((Vec::new(), 0, 0), tables_before));
}

/// A flusher that publishes nothing.
#[derive(Clone, Copy)]
struct Unpublished<'a>(&'a Monitor<'a, Aarch64>);

impl Flusher for Unpublished<'_> {
    type Format = Aarch64;

    fn flush(&mut self, flush: Flush) {
        let Unpublished(mut monitor) = *self;
        monitor.flush(flush);
    }

    fn publish(&mut self, _: VirtRange) {}
}

#[test]
fn a_mapped_page_that_is_not_published_is_noticed() {
    let map = |arena: &Arena, publishes: bool| {
        let space = Space::<Aarch64>::new(arena.table().unwrap(), Level::L4);
        let monitor = Monitor::new(arena, space);
        let entry = Entry::page(Pfn::ZERO, Attributes::KERNEL_DATA, Level::L1).unwrap();
        let run = Run { virt: range(0, 3 * PAGE_BYTES), entry, level: Level::L1 };
        let mut owner = Unmapped { arena, runs: Vec::new() };
        if publishes {
            Native::new(arena, &monitor).map(space, run, &mut owner).unwrap();
        } else {
            Native::new(arena, Unpublished(&monitor)).map(space, run, &mut owner).unwrap();
        }
        monitor.finish()
    };
    let (violations, flushes, publishes) = map(&Arena::new(8), true);
    assert_eq!((violations, flushes, publishes), (Vec::new(), 0, 1), "one publish, and no flush");
    let (violations, ..) = map(&Arena::new(8), false);
    assert_eq!(violations.len(), 3 + 3, "three pages and three links: {violations:?}");
}
