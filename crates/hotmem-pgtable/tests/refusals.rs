//! Checks operations that cannot complete. Each returns the address at which it stopped. The part
//! of the range below this address is done, and the owner has received its pages. The other part is
//! unchanged. No table is leaked or freed too early.
#![cfg(not(loom))]

mod common;

use common::{Arena, RecordingOwner, join_adjacent, link};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    Batch, BatchError, Change, CoveredTables, Entry, Flags, Flush, Level, LocatedEntry, Mmu,
    MoveError, PageTables, Run, Space, StopReason, Stopped, Table, Unmap, VirtRange, find_entry,
};

const PAGE: u64 = 4096;
const LARGE_PAGE_BYTES: u64 = 2 << 20;

fn pfn(number: u64) -> Pfn {
    Pfn::new(number).unwrap()
}

fn range(start: u64, bytes: u64) -> VirtRange {
    VirtRange::new(start, Bytes(bytes)).unwrap()
}

fn page(number: u64) -> Entry {
    Entry::new(pfn(0x1000 + number), Flags::PRESENT | Flags::WRITABLE | Flags::DIRTY)
}

/// Returns an address space in which pages 0 to `pages`, the end excluded, are mapped.
fn mapped(arena: &Arena, pages: u64) -> Space {
    let space = Space::new(arena.table().unwrap(), Level::L4);
    for number in 0..pages {
        assert!(arena.put_entry(space, number * PAGE, Level::L1, page(number)));
    }
    space
}

const KEEP: Unmap =
    Unmap { tables: CoveredTables::Keep, ignore_accessed_and_dirty: false, is_dying: false };

#[test]
fn a_range_that_is_not_canonical_is_refused() {
    let arena = Arena::new(8);
    let space = mapped(&arena, 1);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    for around in [range(1 << 47, PAGE), range((1 << 47) - PAGE, 2 * PAGE), range(0, 1 << 63)] {
        let reason = StopReason::NotCanonical(around);
        let refused = Err(Stopped { address: around.start(), reason, is_flushed: true });
        assert_eq!(tables.unmap_range(around, Unmap::default(), &mut owner), refused);
        let change = Change::new(Flags::GLOBAL, Flags::empty()).unwrap();
        assert_eq!(tables.protect(around, change, &mut owner), refused);
    }
    assert!(owner.runs.is_empty() && arena.flushes.borrow().is_empty());
}

#[test]
fn flags_that_a_change_cannot_have_are_refused() {
    for flag in [Flags::PRESENT, Flags::LARGE, Flags::DIRTY, Flags::ACCESSED] {
        let refused = Change::new(Flags::WRITABLE | flag, Flags::empty()).unwrap_err();
        assert_eq!(refused.0, flag);
        assert_eq!(Change::new(Flags::empty(), flag).unwrap_err().0, flag);
    }
    assert!(
        Change::new(Flags::from_bits_retain(1 << 20), Flags::empty()).is_err(),
        "an address bit is accepted as a flag"
    );
}

#[test]
fn an_entry_that_points_to_no_table_stops_the_unmapping_at_its_address() {
    let free = Unmap::default();
    for (options, level, freed) in
        [(KEEP, Level::L1, 0), (free, Level::L1, 1), (KEEP, Level::L3, 0), (free, Level::L3, 3)]
    {
        let arena = Arena::new(8);
        let space = mapped(&arena, 512);
        let table = pfn(0x777_7777);
        let at = level.table_span().0;
        arena.put_entry(
            space,
            at,
            [Level::L2, Level::L4][usize::from(level != Level::L1)],
            link(table),
        );
        arena.put_entry(space, at + (1 << 40), Level::L1, page(7));
        let mut batch = Batch::new();
        let mut owner = RecordingOwner::new(&arena);
        let mut tables = PageTables::new(arena.native(), space, &mut batch);
        let refused = tables.unmap_range(range(0, 1 << 46), options, &mut owner);
        let reason = StopReason::NotATable { frame: table, level };
        assert_eq!(refused, Err(Stopped { address: at, reason, is_flushed: true }));
        assert_eq!(owner.unmapped_bytes(), Bytes(512 * PAGE));
        assert_eq!(owner.freed_tables, freed);
        assert_eq!(arena.flushes.borrow().len(), 1);
        let link = arena.put_entry(space, at + (1 << 40), Level::L1, page(7));
        assert!(!link, "the page at the higher address is not mapped any more");
    }
}

#[test]
fn an_address_space_with_a_malformed_entry_is_not_torn_down() {
    let malformed = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    let missing = |level| StopReason::NotATable { frame: pfn(0x777_7777), level };
    for (entry, at, level, reason) in [
        (malformed, 512 << 30, Level::L4, StopReason::Malformed(malformed)),
        (link(pfn(0x777_7777)), LARGE_PAGE_BYTES, Level::L2, missing(Level::L1)),
        (link(pfn(0x777_7777)), 512 << 30, Level::L4, missing(Level::L3)),
    ] {
        let arena = Arena::new(8);
        let space = mapped(&arena, 2);
        assert!(arena.put_entry(space, at, level, entry));
        let mut batch = Batch::new();
        let mut owner = RecordingOwner::new(&arena);
        let torn_down = PageTables::new(arena.native(), space, &mut batch).teardown(&mut owner);
        assert_eq!(torn_down, Err(Stopped { address: at, reason, is_flushed: true }));
        assert_eq!((owner.unmapped_bytes(), owner.freed_tables), (Bytes::ZERO, 0));
        assert!(arena.flushes.borrow().is_empty());
        assert!(!arena.put_entry(space, PAGE, Level::L1, page(1)), "a page is not mapped any more");
    }
}

#[test]
fn a_large_page_on_a_level_without_pages_is_refused() {
    let arena = Arena::new(8);
    let space = mapped(&arena, 1);
    let entry = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    arena.put_entry(space, 512 << 30, Level::L4, entry);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let stopped = tables.unmap_range(range(0, 1 << 46), KEEP, &mut owner).unwrap_err();
    assert_eq!((stopped.address, stopped.reason), (512 << 30, StopReason::Malformed(entry)));
    assert_eq!(owner.unmapped_bytes(), Bytes(PAGE));
}

#[test]
fn a_table_with_a_large_page_on_a_level_without_pages_is_not_unhooked() {
    let arena = Arena::new(16);
    let space = Space::new(arena.table().unwrap(), Level::L5);
    let (malformed, above) = (512 << 30, 1 << 40);
    let entry = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    arena.put_entry(space, 0, Level::L1, page(0));
    arena.put_entry(space, malformed, Level::L4, entry);
    arena.put_entry(space, above, Level::L1, page(1));
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let refused = tables.unmap_range(range(0, 1 << 48), Unmap::default(), &mut owner);
    let reason = StopReason::Malformed(entry);
    assert_eq!(refused, Err(Stopped { address: malformed, reason, is_flushed: true }));
    assert_eq!((owner.unmapped_bytes(), owner.freed_tables), (Bytes(PAGE), 3));
    assert!(!arena.put_entry(space, above, Level::L1, page(1)), "the page above is not mapped");
}

#[test]
fn a_change_of_flags_stops_at_a_malformed_entry() {
    let arena = Arena::new(16);
    let space = Space::new(arena.table().unwrap(), Level::L5);
    let entry = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    arena.put_entry(space, 0, Level::L1, page(0));
    arena.put_entry(space, 512 << 30, Level::L4, entry);
    arena.put_entry(space, 1 << 40, Level::L1, page(1));
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let read_only = Change::new(Flags::empty(), Flags::WRITABLE).unwrap();
    let refused = tables.protect(range(0, 1 << 48), read_only, &mut owner);
    let reason = StopReason::Malformed(entry);
    assert_eq!(refused, Err(Stopped { address: 512 << 30, reason, is_flushed: true }));
    let is_writable: Vec<_> = arena
        .mappings(space)
        .iter()
        .map(|mapped| mapped.bits & Flags::WRITABLE.bits() != 0)
        .collect();
    assert_eq!(is_writable, [false, false, true], "only the page below the entry has changed");
}

#[test]
fn a_refused_mapping_leaks_no_table() {
    let arena = Arena::new(4);
    let space = mapped(&arena, 1);
    let owned = arena.owned();
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let large = Entry::new(pfn(0x400), Flags::PRESENT | Flags::LARGE);
    let mut refused = |virt, bytes, level, entry| {
        let run = Run { virt: range(virt, bytes), entry, level };
        tables.map(run, &mut owner).map_err(|stopped| (stopped.address, stopped.reason))
    };
    for (virt, bytes, level, entry) in [
        (LARGE_PAGE_BYTES + PAGE, LARGE_PAGE_BYTES, Level::L2, large),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES + PAGE, Level::L2, large),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES, Level::L2, Entry::new(pfn(0x402), large.flags())),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES, Level::L2, Entry::new(pfn(0x400), Flags::PRESENT)),
        (512 << 30, 512 << 30, Level::L4, large),
        (0, PAGE, Level::L1, Entry::from_bits(0x7000)),
        (0, PAGE, Level::L1, Entry::new(Pfn::LIMIT, Flags::empty())),
    ] {
        assert_eq!(refused(virt, bytes, level, entry), Err((virt, StopReason::NotAPage(entry))));
    }
    let beyond = range(1 << 47, PAGE);
    let canonical = refused(beyond.start(), PAGE, Level::L1, page(1));
    assert_eq!(canonical, Err((beyond.start(), StopReason::NotCanonical(beyond))));
    assert_eq!(
        refused(0, LARGE_PAGE_BYTES, Level::L1, page(1)),
        Err((0, StopReason::Occupied(page(0))))
    );
    assert!(matches!(
        refused(0, LARGE_PAGE_BYTES, Level::L2, large),
        Err((0, StopReason::Occupied(_)))
    ));
    // All frames of the arena are in use, so no frame is left for the L1 table of the second 2 MiB.
    let at = PAGE * 512;
    assert_eq!(
        refused(at - PAGE, 2 * PAGE, Level::L1, page(2)),
        Err((at, StopReason::NoTableFrame(Entry::EMPTY)))
    );
    assert_eq!(owner.unmapped_bytes(), Bytes::ZERO);
    assert_eq!((arena.owned(), arena.mappings(space).len()), (owned, 2));
    // If the owner provides a frame in which the kernel has no table, the owner gets the frame back.
    struct ForeignTables(usize);
    impl hotmem_pgtable::Owner for ForeignTables {
        fn unmapped(&mut self, _: Run) {}
        fn free_table(&mut self, table: Pfn) {
            assert_eq!(table, pfn(0x777));
            self.0 += 1;
        }
        fn new_table(&mut self) -> Option<Pfn> {
            Some(pfn(0x777))
        }
    }
    let mut owner = ForeignTables(0);
    let run = Run { virt: range(at, PAGE), entry: page(3), level: Level::L1 };
    let stopped = tables.map(run, &mut owner).unwrap_err();
    let reason = StopReason::NotATable { frame: pfn(0x777), level: Level::L1 };
    assert_eq!((stopped, owner.0), (Stopped { address: at, reason, is_flushed: true }, 1));
}

#[test]
fn moving_an_address_without_a_page_moves_nothing() {
    let arena = Arena::new(8);
    let space = mapped(&arena, 4);
    arena.put_entry(space, 5 * PAGE, Level::L1, Entry::from_bits(0xabc_d062));
    let before = arena.mappings(space);
    let mut batch = Batch::new();
    let mut refused = |pages: &[u64]| {
        let tables = PageTables::new(arena.native(), space, &mut batch);
        match tables.move_pages(pages.iter().copied(), |_| {
            unreachable!("`copy` is not called if a page is refused")
        }) {
            Err(MoveError::Refused(stopped)) => stopped,
            other => panic!("{other:?}"),
        }
    };
    for (address, entry) in [
        (4 * PAGE, Entry::EMPTY),
        (5 * PAGE, Entry::from_bits(0xabc_d062)),
        (1 << 40, Entry::EMPTY),
    ] {
        let reason = StopReason::NotAPage(entry);
        assert_eq!(refused(&[0, PAGE, address]), Stopped { address, reason, is_flushed: true });
    }
    let beyond = refused(&[0, 1 << 47]);
    assert_eq!(beyond.reason, StopReason::NotCanonical(range(1 << 47, PAGE)));
    assert!(arena.flushes.borrow().is_empty());
    // A page that is requested twice is moved one time, and a page without a new frame keeps its
    // frame.
    let tables = PageTables::new(arena.native(), space, &mut batch);
    let pages = [PAGE, 3 * PAGE, 3 * PAGE + 1];
    assert_eq!(tables.move_pages(pages, |moving| moving.place(1, pfn(0x5000))), Ok(true));
    let mut after = before;
    after[3].bits = Entry::new(pfn(0x5000), page(3).flags()).bits();
    assert_eq!(arena.mappings(space), after);
    let flush = Flush { range: range(PAGE, 3 * PAGE), tables: false };
    assert_eq!(*arena.flushes.borrow(), [flush]);
}

#[test]
fn pages_whose_table_was_freed_during_a_move_are_reported() {
    let arena = Arena::new(8);
    let space = mapped(&arena, 2);
    for (at, number) in [(LARGE_PAGE_BYTES, 7), (LARGE_PAGE_BYTES + PAGE, 8)] {
        assert!(arena.put_entry(space, at, Level::L1, page(number)));
    }
    let table = find_entry(&arena.native(), space, LARGE_PAGE_BYTES).unwrap();
    let mut batch = Batch::new();
    let tables = PageTables::new(arena.native(), space, &mut batch);
    let moved = tables.move_pages([PAGE, LARGE_PAGE_BYTES, LARGE_PAGE_BYTES + PAGE], |moving| {
        assert!(moving.place(1, pfn(0x5000)));
        arena.free(table.addr.table());
    });
    let entry = Entry::new(pfn(0x5000), page(7).flags());
    assert_eq!(
        moved,
        Err(MoveError::NotPresent { first: LocatedEntry { entry, ..table }, pages: 2 })
    );
    assert_eq!(
        find_entry(&arena.native(), space, PAGE).unwrap().entry,
        page(1),
        "the page whose table exists is not present again"
    );
}

#[test]
fn a_split_without_a_frame_is_refused() {
    let arena = Arena::new(4);
    let space = mapped(&arena, 1);
    let large = Entry::new(pfn(0x200), Flags::PRESENT | Flags::LARGE);
    assert!(arena.put_entry(space, LARGE_PAGE_BYTES, Level::L2, large));
    let before = arena.mappings(space);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let stopped =
        tables.unmap_range(range(0, LARGE_PAGE_BYTES + PAGE), KEEP, &mut owner).unwrap_err();
    assert_eq!(
        (stopped.address, stopped.reason),
        (LARGE_PAGE_BYTES, StopReason::NoTableFrame(large))
    );
    assert_eq!(arena.mappings(space), before[1..]);
    let change = Change::new(Flags::WRITABLE, Flags::empty()).unwrap();
    let stopped =
        tables.protect(range(0, LARGE_PAGE_BYTES + PAGE), change, &mut owner).unwrap_err();
    assert_eq!(
        (stopped.address, stopped.reason),
        (LARGE_PAGE_BYTES, StopReason::NoTableFrame(large))
    );
    assert_eq!(arena.mappings(space), before[1..]);
}

/// An MMU that refuses to change more than the first `entries` entries, and refuses all splits and
/// retires. If the flags are set, it also refuses flushes or reclaims.
struct FailingMmu<M> {
    mmu: M,
    entries: usize,
    refuses_flush: bool,
    refuses_reclaim: bool,
}

impl<M> FailingMmu<M> {
    /// Returns the part of the batch that the MMU changes, and an error if the part is not the
    /// whole batch.
    fn change_first(&mut self, batch: &Batch) -> (Batch, Result<(), BatchError<&'static str>>) {
        let mut first = batch.clone();
        first.truncate(self.entries);
        let done = first.len();
        self.entries -= done;
        let refused = BatchError { entries_done: done, fault: "refused" };
        (first, if done < batch.len() { Err(refused) } else { Ok(()) })
    }
}

impl<M: Mmu> Mmu for FailingMmu<M> {
    type Fault = &'static str;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.mmu.table(frame)
    }

    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<&'static str>> {
        let (mut first, result) = self.change_first(batch);
        self.mmu
            .get_and_clear(&mut first)
            .map_err(|_| BatchError { entries_done: 0, fault: "native" })?;
        let done = first.entry_runs().flat_map(|located| located.entries);
        for (entry, done) in batch.entry_runs_mut().flat_map(|located| located.entries).zip(done) {
            *entry = *done;
        }
        result
    }

    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), BatchError<&'static str>> {
        let (first, result) = self.change_first(batch);
        self.mmu
            .protect(&first, change)
            .map_err(|_| BatchError { entries_done: 0, fault: "native" })?;
        result
    }

    fn split(&mut self, _: &LocatedEntry, _: Pfn) -> Result<(), &'static str> {
        Err("no large pages")
    }

    fn flush(&mut self, flush: Flush) -> Result<(), &'static str> {
        if self.refuses_flush {
            return Err("not flushed");
        }
        self.mmu.flush(flush).map_err(|_| "native")
    }

    fn reclaim(&mut self, _: &Batch) -> Result<(), &'static str> {
        if self.refuses_reclaim { Err("not reclaimed") } else { Ok(()) }
    }

    fn retire(&mut self, _: Space) -> Result<(), &'static str> {
        Err("not retired")
    }
}

#[test]
fn an_unmapping_whose_batch_stops_in_the_middle_reports_its_first_part() {
    // The range has two pages of the first table, two whole tables, and a page of the next one.
    for (tables, located) in [(CoveredTables::Free, 0..5), (CoveredTables::Keep, 0..1027)] {
        for refused_after in located.step_by(if tables == CoveredTables::Free { 1 } else { 114 }) {
            let arena = Arena::new(16);
            let space = mapped(&arena, 4 * 512);
            let all = arena.mappings(space);
            let mut batch = Batch::new();
            let mut owner = RecordingOwner::new(&arena);
            let mmu = FailingMmu {
                mmu: arena.native(),
                entries: refused_after,
                refuses_flush: false,
                refuses_reclaim: false,
            };
            let range = range(510 * PAGE, (2 + 2 * 512 + 1) * PAGE);
            let options = Unmap { tables, ..Unmap::default() };
            let stopped = PageTables::new(mmu, space, &mut batch)
                .unmap_range(range, options, &mut owner)
                .unwrap_err();
            assert_eq!((stopped.reason, stopped.is_flushed), (StopReason::Mmu("refused"), true));
            let pages = match tables {
                CoveredTables::Keep => refused_after as u64,
                _ => [0, 1, 2, 2 + 512, 2 + 1024][refused_after],
            };
            assert_eq!(stopped.address, (510 + pages) * PAGE);
            let from = 510..510 + usize::try_from(pages).unwrap();
            assert_eq!(join_adjacent(&owner.mappings()), join_adjacent(&all[from.clone()]));
            let remaining = [&all[..from.start], &all[from.end..]].concat();
            assert_eq!(arena.mappings(space), remaining);
            let freed =
                if tables == CoveredTables::Keep { 0 } else { refused_after.saturating_sub(2) };
            assert_eq!(owner.freed_tables, freed);
            assert_eq!(arena.flushes.borrow().is_empty(), pages == 0);
        }
    }
}

#[test]
fn tables_that_are_not_reclaimed_are_reported_and_not_freed() {
    for (flush, reclaim) in [(true, false), (false, true)] {
        let arena = Arena::new(16);
        let space = mapped(&arena, 3 * 512);
        let mut batch = Batch::new();
        let mut owner = RecordingOwner::new(&arena);
        let mmu = FailingMmu {
            mmu: arena.native(),
            entries: 99,
            refuses_flush: flush,
            refuses_reclaim: reclaim,
        };
        let stopped = PageTables::new(mmu, space, &mut batch)
            .unmap_range(range(0, 2 * 512 * PAGE), Unmap::default(), &mut owner)
            .unwrap_err();
        let reason = StopReason::Mmu(if flush { "not flushed" } else { "not reclaimed" });
        assert_eq!(stopped, Stopped { address: 2 * 512 * PAGE, reason, is_flushed: !flush });
        assert_eq!((owner.freed_tables, owner.stuck_tables.len()), (0, 2));
        assert_eq!(
            owner.unmapped_bytes(),
            Bytes(2 * 512 * PAGE),
            "the owner does not receive the pages of the tables"
        );
    }
}

#[test]
fn a_refused_teardown_changes_nothing() {
    let arena = Arena::new(16);
    let space = mapped(&arena, 600);
    let before = arena.mappings(space);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mmu = FailingMmu {
        mmu: arena.native(),
        entries: 0,
        refuses_flush: false,
        refuses_reclaim: false,
    };
    let stopped = PageTables::new(mmu, space, &mut batch).teardown(&mut owner).unwrap_err();
    assert_eq!(
        stopped,
        Stopped { address: 0, reason: StopReason::Mmu("not retired"), is_flushed: false }
    );
    assert!(owner.runs.is_empty() && owner.freed_tables == 0);
    assert_eq!(arena.mappings(space), before);
}

#[test]
fn the_table_of_a_refused_split_is_freed() {
    let arena = Arena::new(16);
    let space = mapped(&arena, 1);
    arena.put_entry(
        space,
        LARGE_PAGE_BYTES,
        Level::L2,
        Entry::new(pfn(0x200), Flags::PRESENT | Flags::LARGE),
    );
    let owned = arena.owned();
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mmu = FailingMmu {
        mmu: arena.native(),
        entries: 9,
        refuses_flush: false,
        refuses_reclaim: false,
    };
    let stopped = PageTables::new(mmu, space, &mut batch)
        .unmap_range(range(0, LARGE_PAGE_BYTES + PAGE), KEEP, &mut owner)
        .unwrap_err();
    assert_eq!(
        (stopped.address, stopped.reason),
        (LARGE_PAGE_BYTES, StopReason::Mmu("no large pages"))
    );
    assert_eq!((arena.owned(), owner.unmapped_bytes()), (owned, Bytes(PAGE)));
}

#[test]
fn a_protection_whose_batch_stops_in_the_middle_changes_its_first_part() {
    let arena = Arena::new(16);
    let space = mapped(&arena, 1024);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mmu = FailingMmu {
        mmu: arena.native(),
        entries: 700,
        refuses_flush: false,
        refuses_reclaim: false,
    };
    let change = Change::new(Flags::empty(), Flags::WRITABLE).unwrap();
    let stopped = PageTables::new(mmu, space, &mut batch)
        .protect(range(0, 1024 * PAGE), change, &mut owner)
        .unwrap_err();
    assert_eq!(
        stopped,
        Stopped { address: 700 * PAGE, reason: StopReason::Mmu("refused"), is_flushed: true }
    );
    let writable = |mapping: &common::MappedRange| mapping.bits & 2 != 0;
    assert_eq!(
        arena.mappings(space).iter().filter(|mapping| writable(mapping)).count(),
        1024 - 700
    );
    assert_eq!(arena.flushes.borrow().len(), 1);
}
