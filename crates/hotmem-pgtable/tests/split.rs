//! Checks splits of large pages. If TLBs cache translations of both page sizes for one address, these
//! translations must not differ (SDM volume 3, 4.10.2.3).
#![cfg(not(loom))]

mod common;

use common::{Arena, KEEP, LARGE_PAGE_BYTES, PAGE_BYTES, RecordingOwner, range};
use hotmem_addr::Pfn;
use hotmem_pgtable::x86_64::{Batch, Change, Entry, Flags, Space};
use hotmem_pgtable::{
    Flush, Kind, Level, Mmu, Native, PageTables, Split, VirtRange, find_entry, find_entry_from,
};
use std::{cell::RefCell, sync::atomic::Ordering::Relaxed};

const HUGE_PAGE_BYTES: u64 = 1 << 30;

fn large_entry(level: Level) -> Entry {
    let flags = Flags::PRESENT | Flags::WRITABLE | Flags::LARGE | Flags::ACCESSED;
    Entry::new(Pfn::containing(4 * HUGE_PAGE_BYTES).unwrap(), flags).with(match level {
        Level::L3 => Flags::GLOBAL,
        _ => Flags::empty(),
    })
}

/// Maps a large page at `address`, runs `operation`, and reads the tables at each flush that covers
/// the address. Returns two entries for each of these flushes: the kind of the entry for the address
/// at `level`, and the entry that maps the address. Also returns the kind of the entry at `level`
/// after the operation.
fn at_each_flush(
    split: Split,
    level: Level,
    address: u64,
    operation: impl FnOnce(
        &mut PageTables<'_, Native<&Arena, &mut dyn FnMut(Flush)>>,
        &mut RecordingOwner<'_>,
    ),
) -> (Vec<(Kind, Entry)>, Kind) {
    let arena = Arena::new(16);
    let space = Space::new(arena.table().unwrap(), Level::L4);
    assert!(arena.put_entry(space, address, level, large_entry(level)));
    let entries_at_flushes = RefCell::new(Vec::new());
    let entry = || find_entry_from(&arena.native(), space, address, level).unwrap().kind();
    let mut flush = |flush: Flush| {
        if flush.range.start() <= address && address <= flush.range.last() {
            let page = find_entry(&arena.native(), space, address).unwrap().entry;
            entries_at_flushes.borrow_mut().push((entry(), page));
        }
    };
    let flush: &mut dyn FnMut(Flush) = &mut flush;
    let native = Native::new(&arena, flush).with_split(split);
    let (mut batch, mut owner) = (Batch::new(), RecordingOwner::new(&arena));
    operation(&mut PageTables::new(native, space, &mut batch), &mut owner);
    (entries_at_flushes.into_inner(), entry())
}

/// Returns ranges that contain a part of a large page, each with the level and the address of the page.
fn partial_ranges() -> [(Level, u64, VirtRange); 4] {
    [
        (Level::L2, LARGE_PAGE_BYTES, range(0, LARGE_PAGE_BYTES + PAGE_BYTES)),
        (Level::L2, LARGE_PAGE_BYTES, range(LARGE_PAGE_BYTES, PAGE_BYTES)),
        (Level::L3, HUGE_PAGE_BYTES, range(0, HUGE_PAGE_BYTES + PAGE_BYTES)),
        (Level::L3, HUGE_PAGE_BYTES, range(HUGE_PAGE_BYTES, LARGE_PAGE_BYTES)),
    ]
}

fn change() -> Change {
    Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap()
}

#[test]
fn a_large_page_is_cleared_and_flushed_before_it_becomes_a_table() {
    for (level, address, part) in partial_ranges() {
        let unmap = at_each_flush(Split::ClearFirst, level, address, |tables, owner| {
            tables.unmap_range(part, KEEP, owner).unwrap();
        });
        let protect = at_each_flush(Split::ClearFirst, level, address, |tables, owner| {
            tables.protect(part, change(), owner).unwrap();
        });
        for (at_flushes, after) in [unmap, protect] {
            let first = at_flushes.first().map(|(kind, _)| *kind);
            assert_eq!(first, Some(Kind::Empty), "{part:?}");
            assert!(matches!(after, Kind::Table(_)), "{part:?}: {after:?}");
        }
    }
}

#[test]
fn a_large_page_that_is_split_in_place_is_flushed_before_any_part_of_it_changes() {
    for (level, address, part) in partial_ranges() {
        let unmap = at_each_flush(Split::InPlace, level, address, |tables, owner| {
            tables.unmap_range(part, KEEP, owner).unwrap();
        });
        let protect = at_each_flush(Split::InPlace, level, address, |tables, owner| {
            tables.protect(part, change(), owner).unwrap();
        });
        for (at_flushes, _) in [unmap, protect] {
            let (kind, page) = at_flushes[0];
            assert!(matches!(kind, Kind::Table(_)), "{part:?}: {kind:?}");
            let (flags, before) = (page.flags(), large_entry(level).flags());
            assert_eq!(flags - Flags::LARGE, before - Flags::LARGE, "{part:?}");
            assert!(at_flushes.len() > 1, "the changed entries are not flushed");
        }
    }
}

#[test]
fn bits_that_a_processor_sets_before_the_page_is_cleared_are_in_all_partial_ranges() {
    for split in [Split::ClearFirst, Split::InPlace] {
        let arena = Arena::new(16);
        let space = Space::new(arena.table().unwrap(), Level::L4);
        let clean = Entry::from_bits(large_entry(Level::L2).bits() & !Flags::ACCESSED_DIRTY.bits());
        assert!(arena.put_entry(space, LARGE_PAGE_BYTES, Level::L2, clean));
        let located = find_entry(&arena.native(), space, LARGE_PAGE_BYTES).unwrap();
        // A processor sets Dirty after the entry was read.
        arena.words(located.addr.table())[located.addr.index()]
            .fetch_or(Flags::DIRTY.bits(), Relaxed);
        let table = arena.table().unwrap();
        arena.native().with_split(split).split(&located, table).unwrap();
        for (number, word) in (0..).zip(arena.words(table)) {
            let expected = clean.bits() & !Flags::LARGE.bits() | Flags::DIRTY.bits();
            assert_eq!(word.load(Relaxed), expected + number * PAGE_BYTES, "{split:?}");
        }
    }
}

#[test]
fn a_split_in_place_flushes_entries_that_point_to_tables() {
    for (split, tables) in [(Split::ClearFirst, false), (Split::InPlace, true)] {
        let arena = Arena::new(16);
        let space = Space::new(arena.table().unwrap(), Level::L4);
        assert!(arena.put_entry(space, LARGE_PAGE_BYTES, Level::L2, large_entry(Level::L2)));
        let located = find_entry(&arena.native(), space, LARGE_PAGE_BYTES).unwrap();
        arena.native().with_split(split).split(&located, arena.table().unwrap()).unwrap();
        let range = range(LARGE_PAGE_BYTES, LARGE_PAGE_BYTES);
        assert_eq!(*arena.flushes.borrow(), [Flush { range, tables }], "{split:?}");
    }
}
