//! Checks that the number of table accesses is proportional to what is mapped, not to the length of
//! the range.
#![cfg(not(loom))]

mod common;

use common::{Arena, Notes};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    Batch, Change, Covered, Entry, Flags, Flush, Level, Native, PageTables, Space, Table, Tables,
    Unmap, VirtRange,
};
use std::cell::Cell;

/// Gives access to the tables of an arena, and counts the accesses.
struct Counting<'a> {
    arena: &'a Arena,
    accesses: &'a Cell<u64>,
}

impl Tables for Counting<'_> {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.accesses.set(self.accesses.get() + 1);
        self.arena.table_at(frame)
    }
}

/// Returns how often `act`, an operation on the lower half of an address space, accesses tables.
/// The half has `tables` pages of 4 KiB, which lie so far apart that each has an L1 table of its
/// own.
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
        assert!(arena.put_entry(space, table * apart, Level::L1, page));
    }
    let (accesses, mut batch) = (Cell::new(0), Batch::new());
    let native =
        Native::new(Counting { arena: &arena, accesses: &accesses }, (|_| {}) as fn(Flush));
    let lower_half = VirtRange::new(0, Bytes(levels.table_bytes().0 / 2)).unwrap();
    let mut notes = Notes::new(&arena);
    act(&mut PageTables::new(native, space, &mut batch), lower_half, &mut notes);
    accesses.get()
}

#[test]
fn the_cost_of_a_range_is_proportional_to_what_is_mapped_in_it() {
    // A table has 64 lines, and each line is read at most 4 times.
    let max_accesses = |tables: u64| 64 * 4 * tables;
    for (levels, tables_per_page) in [(Level::L4, 3), (Level::L5, 4)] {
        for (pages, covered) in
            [(0, Covered::Keep), (4, Covered::Keep), (4, Covered::Free), (32, Covered::Free)]
        {
            let unmap = accesses(pages, levels, |tables, range, notes| {
                let options = Unmap { tables: covered, ..Unmap::default() };
                tables.unmap_range(range, options, notes).unwrap();
                assert_eq!(notes.reported_bytes(), Bytes(pages * 4096));
            });
            assert!(
                unmap <= max_accesses(1 + tables_per_page * pages),
                "{unmap} for {pages} pages, {covered:?}"
            );
        }
        let protect = accesses(8, levels, |tables, range, notes| {
            let change = Change::new(Flags::NO_EXECUTE, Flags::empty()).unwrap();
            tables.protect(range, change, notes).unwrap();
        });
        assert!(protect <= max_accesses(1 + tables_per_page * 8), "{protect}");
    }
}
