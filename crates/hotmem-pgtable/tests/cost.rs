//! The number of table accesses is proportional to what is mapped, not to the length of the range.
#![cfg(not(loom))]

mod common;

use common::{Arena, Notes};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    Batch, Change, Covered, Entry, Flags, Flush, Level, Native, PageTables, Space, Table, Tables,
    Unmap, VirtRange,
};
use std::cell::Cell;

/// Counts table accesses.
struct Counting<'a> {
    arena: &'a Arena,
    accesses: &'a Cell<u64>,
}

impl Tables for Counting<'_> {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.accesses.set(self.accesses.get() + 1);
        self.arena.words_of(frame)
    }
}

/// Returns how often an operation on the whole address space accesses tables, if there is one 4 KiB
/// page in each of `pages` tables that lie far apart.
fn accesses(
    tables: u64,
    levels: Level,
    act: impl FnOnce(&mut PageTables<'_, Native<Counting<'_>, fn(Flush)>>, VirtRange, &mut Notes<'_>),
) -> u64 {
    let arena = Arena::new(200);
    let space = Space::new(arena.table().unwrap(), levels);
    let apart = levels.table_bytes().0 / 2 / 64;
    for table in 0..tables {
        let page = Entry::new(Pfn::new(0x1000 + table).unwrap(), Flags::PRESENT | Flags::DIRTY);
        assert!(arena.put(space, table * apart, Level::L1, page));
    }
    let (accesses, mut batch) = (Cell::new(0), Batch::new());
    let native =
        Native::new(Counting { arena: &arena, accesses: &accesses }, (|_| {}) as fn(Flush));
    let everything = VirtRange::new(0, Bytes(levels.table_bytes().0 / 2)).unwrap();
    let mut notes = Notes::new(&arena);
    act(&mut PageTables::new(native, space, &mut batch), everything, &mut notes);
    accesses.get()
}

#[test]
fn a_range_costs_what_is_mapped_in_it() {
    // Each table is read line by line, a few times.
    let most = |tables: u64| 64 * 4 * tables;
    for (levels, each) in [(Level::L4, 3), (Level::L5, 4)] {
        for (pages, covered) in
            [(0, Covered::Keep), (4, Covered::Keep), (4, Covered::Free), (32, Covered::Free)]
        {
            let unmap = accesses(pages, levels, |tables, range, notes| {
                let how = Unmap { tables: covered, ..Unmap::default() };
                tables.unmap_range(range, how, notes).unwrap();
                assert_eq!(notes.told(), Bytes(pages * 4096));
            });
            assert!(unmap <= most(1 + each * pages), "{unmap} for {pages} pages, {covered:?}");
        }
        let protect = accesses(8, levels, |tables, range, notes| {
            let change = Change::new(Flags::NO_EXECUTE, Flags::empty()).unwrap();
            tables.protect(range, change, notes).unwrap();
        });
        assert!(protect <= most(1 + each * 8), "{protect}");
    }
}
