//! Checks operations that cannot complete. Each returns the address at which it stopped. The part
//! of the range below this address is done, and the owner has received its pages. The other part is
//! unchanged. No table is leaked or freed too early.
#![cfg(not(loom))]

mod common;

use common::{
    Arena, KEEP, LARGE_PAGE_BYTES, PAGE_BYTES, RecordingOwner, link, mapped_space, page_entry, pfn,
    range,
};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{
    Batch, Change, Entry, Flags, LocatedEntry, MoveError, Run, Space, StopReason, Stopped,
};
use hotmem_pgtable::{Flush, Level, PageTables, Unmap, find_entry};

#[test]
fn a_range_that_is_not_canonical_is_refused() {
    let arena = Arena::new(8);
    let space = mapped_space(&arena, 1);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    for not_canonical in [
        range(1 << 47, PAGE_BYTES),
        range((1 << 47) - PAGE_BYTES, 2 * PAGE_BYTES),
        range(0, 1 << 63),
    ] {
        let reason = StopReason::NotCanonical(not_canonical);
        let refused = Err(Stopped { address: not_canonical.start(), reason, is_flushed: true });
        assert_eq!(tables.unmap_range(not_canonical, Unmap::default(), &mut owner), refused);
        let change = Change::new(Flags::GLOBAL, Flags::empty()).unwrap();
        assert_eq!(tables.protect(not_canonical, change, &mut owner), refused);
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
    for (options, level, freed) in [
        (KEEP, Level::L1, 0),
        (Unmap::default(), Level::L1, 1),
        (KEEP, Level::L3, 0),
        (Unmap::default(), Level::L3, 3),
    ] {
        let arena = Arena::new(8);
        let space = mapped_space(&arena, 512);
        let table = pfn(0x777_7777);
        let address = level.table_span().0;
        let level_above = if level == Level::L1 { Level::L2 } else { Level::L4 };
        arena.put_entry(space, address, level_above, link(table));
        arena.put_entry(space, address + (1 << 40), Level::L1, page_entry(7));
        let mut batch = Batch::new();
        let mut owner = RecordingOwner::new(&arena);
        let mut tables = PageTables::new(arena.native(), space, &mut batch);
        let refused = tables.unmap_range(range(0, 1 << 46), options, &mut owner);
        let reason = StopReason::NotATable { frame: table, level };
        assert_eq!(refused, Err(Stopped { address, reason, is_flushed: true }));
        assert_eq!(owner.unmapped_bytes(), Bytes(512 * PAGE_BYTES));
        assert_eq!(owner.freed_tables, freed);
        assert_eq!(arena.flushes.borrow().len(), 1);
        let was_empty = arena.put_entry(space, address + (1 << 40), Level::L1, page_entry(7));
        assert!(!was_empty, "the page at the higher address is not mapped any more");
    }
}

#[test]
fn an_address_space_with_a_malformed_entry_is_not_torn_down() {
    let malformed = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    let missing = |level| StopReason::NotATable { frame: pfn(0x777_7777), level };
    for (entry, address, level, reason) in [
        (malformed, 512 << 30, Level::L4, StopReason::Malformed(malformed)),
        (link(pfn(0x777_7777)), LARGE_PAGE_BYTES, Level::L2, missing(Level::L1)),
        (link(pfn(0x777_7777)), 512 << 30, Level::L4, missing(Level::L3)),
    ] {
        let arena = Arena::new(8);
        let space = mapped_space(&arena, 2);
        assert!(arena.put_entry(space, address, level, entry));
        let mut batch = Batch::new();
        let mut owner = RecordingOwner::new(&arena);
        let torn_down = PageTables::new(arena.native(), space, &mut batch).teardown(&mut owner);
        assert_eq!(torn_down, Err(Stopped { address, reason, is_flushed: true }));
        assert_eq!((owner.unmapped_bytes(), owner.freed_tables), (Bytes::ZERO, 0));
        assert!(arena.flushes.borrow().is_empty());
        assert!(
            !arena.put_entry(space, PAGE_BYTES, Level::L1, page_entry(1)),
            "a page is not mapped any more"
        );
    }
}

#[test]
fn a_large_page_on_a_level_without_pages_is_refused() {
    let arena = Arena::new(8);
    let space = mapped_space(&arena, 1);
    let entry = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    arena.put_entry(space, 512 << 30, Level::L4, entry);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let stopped = tables.unmap_range(range(0, 1 << 46), KEEP, &mut owner).unwrap_err();
    assert_eq!((stopped.address, stopped.reason), (512 << 30, StopReason::Malformed(entry)));
    assert_eq!(owner.unmapped_bytes(), Bytes(PAGE_BYTES));
}

#[test]
fn a_table_with_a_large_page_on_a_level_without_pages_is_not_unhooked() {
    let arena = Arena::new(16);
    let space = Space::new(arena.table().unwrap(), Level::L5);
    let (malformed, above) = (512 << 30, 1 << 40);
    let entry = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    arena.put_entry(space, 0, Level::L1, page_entry(0));
    arena.put_entry(space, malformed, Level::L4, entry);
    arena.put_entry(space, above, Level::L1, page_entry(1));
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let refused = tables.unmap_range(range(0, 1 << 48), Unmap::default(), &mut owner);
    let reason = StopReason::Malformed(entry);
    assert_eq!(refused, Err(Stopped { address: malformed, reason, is_flushed: true }));
    assert_eq!((owner.unmapped_bytes(), owner.freed_tables), (Bytes(PAGE_BYTES), 3));
    assert!(
        !arena.put_entry(space, above, Level::L1, page_entry(1)),
        "the page above is not mapped"
    );
}

#[test]
fn a_change_of_flags_stops_at_a_malformed_entry() {
    let arena = Arena::new(16);
    let space = Space::new(arena.table().unwrap(), Level::L5);
    let entry = Entry::new(pfn(1), Flags::PRESENT | Flags::LARGE);
    arena.put_entry(space, 0, Level::L1, page_entry(0));
    arena.put_entry(space, 512 << 30, Level::L4, entry);
    arena.put_entry(space, 1 << 40, Level::L1, page_entry(1));
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
    let space = mapped_space(&arena, 1);
    let owned = arena.table_count();
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let large = Entry::new(pfn(0x400), Flags::PRESENT | Flags::LARGE);
    let mut refused = |virt, bytes, level, entry| {
        let run = Run { virt: range(virt, bytes), entry, level };
        tables.map(run, &mut owner).map_err(|stopped| (stopped.address, stopped.reason))
    };
    for (virt, bytes, level, entry) in [
        (LARGE_PAGE_BYTES + PAGE_BYTES, LARGE_PAGE_BYTES, Level::L2, large),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES + PAGE_BYTES, Level::L2, large),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES, Level::L2, Entry::new(pfn(0x402), large.flags())),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES, Level::L2, Entry::new(pfn(0x400), Flags::PRESENT)),
        (512 << 30, 512 << 30, Level::L4, large),
        (0, PAGE_BYTES, Level::L1, Entry::from_bits(0x7000)),
        (0, PAGE_BYTES, Level::L1, Entry::new(Pfn::LIMIT, Flags::empty())),
    ] {
        assert_eq!(refused(virt, bytes, level, entry), Err((virt, StopReason::NotAPage(entry))));
    }
    let beyond = range(1 << 47, PAGE_BYTES);
    let canonical = refused(beyond.start(), PAGE_BYTES, Level::L1, page_entry(1));
    assert_eq!(canonical, Err((beyond.start(), StopReason::NotCanonical(beyond))));
    assert_eq!(
        refused(0, LARGE_PAGE_BYTES, Level::L1, page_entry(1)),
        Err((0, StopReason::Occupied(page_entry(0))))
    );
    assert!(matches!(
        refused(0, LARGE_PAGE_BYTES, Level::L2, large),
        Err((0, StopReason::Occupied(_)))
    ));
    // All frames of the arena are in use, so no frame is left for the L1 table of the second 2 MiB.
    let address = PAGE_BYTES * 512;
    assert_eq!(
        refused(address - PAGE_BYTES, 2 * PAGE_BYTES, Level::L1, page_entry(2)),
        Err((address, StopReason::NoTableFrame(Entry::EMPTY)))
    );
    assert_eq!(owner.unmapped_bytes(), Bytes::ZERO);
    assert_eq!((arena.table_count(), arena.mappings(space).len()), (owned, 2));
    // If the owner provides a frame in which the kernel has no table, the owner gets the frame back.
    struct ForeignTables(usize);
    impl hotmem_pgtable::Owner<hotmem_pgtable::X86_64> for ForeignTables {
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
    let run = Run { virt: range(address, PAGE_BYTES), entry: page_entry(3), level: Level::L1 };
    let stopped = tables.map(run, &mut owner).unwrap_err();
    let reason = StopReason::NotATable { frame: pfn(0x777), level: Level::L1 };
    assert_eq!((stopped, owner.0), (Stopped { address, reason, is_flushed: true }, 1));
}

#[test]
fn moving_an_address_without_a_page_moves_nothing() {
    let arena = Arena::new(8);
    let space = mapped_space(&arena, 4);
    arena.put_entry(space, 5 * PAGE_BYTES, Level::L1, Entry::from_bits(0xabc_d062));
    let before = arena.mappings(space);
    let mut batch = Batch::new();
    let mut refused = |pages: &[u64]| {
        let tables = PageTables::new(arena.native(), space, &mut batch);
        match tables.move_pages(pages.iter().copied(), |_| {
            unreachable!("`copy` is not called if a page is refused")
        }) {
            Err(MoveError::Refused(stopped)) => stopped,
            result => panic!("{result:?}"),
        }
    };
    for (address, entry) in [
        (4 * PAGE_BYTES, Entry::EMPTY),
        (5 * PAGE_BYTES, Entry::from_bits(0xabc_d062)),
        (1 << 40, Entry::EMPTY),
    ] {
        let reason = StopReason::NotAPage(entry);
        assert_eq!(
            refused(&[0, PAGE_BYTES, address]),
            Stopped { address, reason, is_flushed: true }
        );
    }
    let beyond = refused(&[0, 1 << 47]);
    assert_eq!(beyond.reason, StopReason::NotCanonical(range(1 << 47, PAGE_BYTES)));
    assert!(arena.flushes.borrow().is_empty());
    // A page that is requested twice is moved one time, and a page without a new frame keeps its
    // frame.
    let tables = PageTables::new(arena.native(), space, &mut batch);
    let pages = [PAGE_BYTES, 3 * PAGE_BYTES, 3 * PAGE_BYTES + 1];
    assert_eq!(tables.move_pages(pages, |moving| moving.place(1, pfn(0x5000))), Ok(true));
    let mut after = before;
    after[3].bits = Entry::new(pfn(0x5000), page_entry(3).flags()).bits();
    assert_eq!(arena.mappings(space), after);
    let flush = Flush { range: range(PAGE_BYTES, 3 * PAGE_BYTES), tables: false };
    assert_eq!(*arena.flushes.borrow(), [flush]);
}

#[test]
fn pages_whose_table_was_freed_during_a_move_are_reported() {
    let arena = Arena::new(8);
    let space = mapped_space(&arena, 2);
    for (address, number) in [(LARGE_PAGE_BYTES, 7), (LARGE_PAGE_BYTES + PAGE_BYTES, 8)] {
        assert!(arena.put_entry(space, address, Level::L1, page_entry(number)));
    }
    let table = find_entry(&arena.native(), space, LARGE_PAGE_BYTES).unwrap();
    let mut batch = Batch::new();
    let tables = PageTables::new(arena.native(), space, &mut batch);
    let moved = tables.move_pages(
        [PAGE_BYTES, LARGE_PAGE_BYTES, LARGE_PAGE_BYTES + PAGE_BYTES],
        |moving| {
            assert!(moving.place(1, pfn(0x5000)));
            arena.free(table.addr.table());
        },
    );
    let entry = Entry::new(pfn(0x5000), page_entry(7).flags());
    assert_eq!(
        moved,
        Err(MoveError::NotPresent { first: LocatedEntry { entry, ..table }, pages: 2 })
    );
    assert_eq!(
        find_entry(&arena.native(), space, PAGE_BYTES).unwrap().entry,
        page_entry(1),
        "the page whose table exists is not present again"
    );
}

#[test]
fn a_split_without_a_frame_is_refused() {
    let arena = Arena::new(4);
    let space = mapped_space(&arena, 1);
    let large = Entry::new(pfn(0x200), Flags::PRESENT | Flags::LARGE);
    assert!(arena.put_entry(space, LARGE_PAGE_BYTES, Level::L2, large));
    let before = arena.mappings(space);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    let stopped =
        tables.unmap_range(range(0, LARGE_PAGE_BYTES + PAGE_BYTES), KEEP, &mut owner).unwrap_err();
    assert_eq!(
        (stopped.address, stopped.reason),
        (LARGE_PAGE_BYTES, StopReason::NoTableFrame(large))
    );
    assert_eq!(arena.mappings(space), before[1..]);
    let change = Change::new(Flags::WRITABLE, Flags::empty()).unwrap();
    let stopped =
        tables.protect(range(0, LARGE_PAGE_BYTES + PAGE_BYTES), change, &mut owner).unwrap_err();
    assert_eq!(
        (stopped.address, stopped.reason),
        (LARGE_PAGE_BYTES, StopReason::NoTableFrame(large))
    );
    assert_eq!(arena.mappings(space), before[1..]);
}
