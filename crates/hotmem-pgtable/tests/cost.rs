//! Checks that the number of table accesses is proportional to the number of mapped pages, and not to
//! the length of the range.
#![cfg(not(loom))]

mod common;

use common::{Arena, RecordingOwner};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{Batch, Change, Entry, Flags, Space};
use hotmem_pgtable::{
    CoveredTables, Flush, Level, Native, PageTables, Table, Tables, Unmap, VirtRange,
};
use std::cell::Cell;

/// Gives access to the tables of an arena, and counts the accesses.
struct CountingMemory<'a> {
    arena: &'a Arena,
    accesses: &'a Cell<u64>,
}

impl Tables for CountingMemory<'_> {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.accesses.set(self.accesses.get() + 1);
        self.arena.table_at(frame)
    }
}

/// Returns the number of table accesses of `operation`, which works on the lower half of an address
/// space. This half has `page_count` mapped pages of 4 KiB, which lie so far apart that each has a
/// separate L1 table.
fn count_accesses(
    page_count: u64,
    root_level: Level,
    operation: impl FnOnce(
        &mut PageTables<'_, Native<CountingMemory<'_>, fn(Flush)>>,
        VirtRange,
        &mut RecordingOwner<'_>,
    ),
) -> u64 {
    let arena = Arena::new(200);
    let space = Space::new(arena.table().unwrap(), root_level);
    let distance = root_level.table_span().0 / 2 / 64;
    for page in 0..page_count {
        let entry = Entry::new(Pfn::new(0x1000 + page).unwrap(), Flags::PRESENT | Flags::DIRTY);
        assert!(arena.put_entry(space, page * distance, Level::L1, entry));
    }
    let (accesses, mut batch) = (Cell::new(0), Batch::new());
    let native =
        Native::new(CountingMemory { arena: &arena, accesses: &accesses }, (|_| {}) as fn(Flush));
    let lower_half = VirtRange::new(0, Bytes(root_level.table_span().0 / 2)).unwrap();
    let mut owner = RecordingOwner::new(&arena);
    operation(&mut PageTables::new(native, space, &mut batch), lower_half, &mut owner);
    accesses.get()
}

#[test]
fn the_cost_of_a_range_is_proportional_to_the_number_of_mapped_pages() {
    // A table has 64 cache lines. An operation reads each line with one access, and at most 4
    // times.
    let max_accesses = |table_count: u64| 64 * 4 * table_count;
    for (root_level, tables_per_page) in [(Level::L4, 3), (Level::L5, 4)] {
        for (pages, covered) in [
            (0, CoveredTables::Keep),
            (4, CoveredTables::Keep),
            (4, CoveredTables::Free),
            (32, CoveredTables::Free),
        ] {
            let unmap = count_accesses(pages, root_level, |tables, range, owner| {
                let options = Unmap { tables: covered, ..Unmap::default() };
                tables.unmap_range(range, options, owner).unwrap();
                assert_eq!(owner.unmapped_bytes(), Bytes(pages * 4096));
            });
            assert!(
                unmap <= max_accesses(1 + tables_per_page * pages),
                "{unmap} for {pages} pages, {covered:?}"
            );
        }
        let protect = count_accesses(8, root_level, |tables, range, owner| {
            let change = Change::new(Flags::NO_EXECUTE, Flags::empty()).unwrap();
            tables.protect(range, change, owner).unwrap();
        });
        assert!(protect <= max_accesses(1 + tables_per_page * 8), "{protect}");
    }
}
