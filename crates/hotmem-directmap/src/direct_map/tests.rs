//! Tests the direct map with page tables in an arena of frames.

mod formats;
mod requests;

use super::*;
use crate::arena::Arena;

const BASE: u64 = 0xffff_8000_0000_0000;
/// The size of the area: 112 TiB.
const BYTES: Bytes = Bytes::gib(112 << 10);

/// The bit that forbids execution.
const NO_EXECUTE: u64 = 1 << 63;

type Map<'a> = DirectMap<&'a Arena, fn(Flush)>;

fn direct_map(arena: &Arena, huge_pages: bool) -> Map<'_> {
    let area = Area::new(BASE, BYTES).unwrap();
    DirectMap::new(arena, arena.root(), area, huge_pages, |_| {})
}

fn range(start: Bytes, len: Bytes) -> PfnRange {
    PfnRange::from_bytes(start.0, len).unwrap()
}

fn is_mapped(map: &Map<'_>, range: PfnRange) -> bool {
    let pages: Vec<bool> = range.chunks(512).map(|page| map.is_mapped(page.start())).collect();
    assert!(pages.windows(2).all(|pair| pair[0] == pair[1]), "only a part of {range} is mapped");
    pages[0]
}

fn release_tables(map: &mut Map<'_>, range: PfnRange) -> Vec<u64> {
    let mut freed = Vec::new();
    map.release_tables(range, |frame| freed.push(frame.number()));
    freed.sort_unstable();
    freed
}

#[test]
fn maps_the_requested_range_and_no_more() {
    let arena = Arena::new(32);
    let mut map = direct_map(&arena, true);
    let requested = range(Bytes::mib(1022), Bytes::mib(6));
    assert_eq!(map.tables_missing(requested), 3);
    let written = map.map(requested, Caching::WriteBack, || arena.frame()).unwrap();
    assert_eq!(
        written,
        Bytes(3 * (4096 + 8) + 3 * 8),
        "three tables, the entries that point to the tables, and three pages"
    );
    assert_eq!(arena.used_frames().len(), 3);
    assert_eq!(map.map(requested, Caching::WriteBack, || None), Ok(Bytes::ZERO));
    let larger = range(Bytes::mib(1020), Bytes::mib(10));
    assert_eq!(map.map(larger, Caching::WriteBack, || None), Ok(Bytes(2 * 8)));
    assert!(is_mapped(&map, larger));
    assert!(!map.is_mapped(Pfn::containing(Bytes::mib(1019).0).unwrap()));
    assert!(!map.is_mapped(Pfn::containing(Bytes::mib(1030).0).unwrap()));
    assert_eq!(map.tables_missing(range(Bytes::ZERO, Bytes::gib(2))), 0);
    assert_eq!(map.tables_missing(range(Bytes::gib(1), Bytes::gib(2))), 1);
}

#[test]
fn entries_hold_address_and_caching() {
    for huge_pages in [false, true] {
        let arena = Arena::new(32);
        let mut map = direct_map(&arena, huge_pages);
        let start = Bytes::gib(255);
        map.map(range(start, Bytes::gib(1)), Caching::Uncached, || arena.frame()).unwrap();
        let last = BASE + start.0 + Bytes::mib(1022).0;
        let located = find_entry(&map.mmu(), map.space, last).unwrap();
        let (address, level) = if huge_pages {
            (start.0, Level::L3)
        } else {
            (start.0 + Bytes::mib(1022).0, Level::L2)
        };
        assert_eq!((located.entry.bits(), located.level), (address | 0xfb | NO_EXECUTE, level));
    }
}

#[test]
fn the_kernel_chooses_the_attributes_of_pages() {
    let arena = Arena::new(32);
    let attributes = Attributes { executable: true, global: true, ..Attributes::KERNEL_DATA };
    let mut map = direct_map(&arena, true).with_attributes(attributes);
    let all = range(Bytes::gib(4), Bytes::gib(1));
    map.map(all, Caching::WriteBack, || arena.frame()).unwrap();
    let entry = |map: &Map<'_>, address| {
        find_entry(&map.mmu(), map.space, BASE + address).unwrap().entry.bits()
    };
    assert_eq!(entry(&map, Bytes::gib(4).0), Bytes::gib(4).0 | 0x1e3);
    // The parts of a page that is split have the same flags.
    map.unmap(range(Bytes::gib(4), Bytes::mib(2))).unwrap();
    let second = Bytes::gib(4).0 + Bytes::mib(2).0;
    assert_eq!(entry(&map, second), second | 0x1e3);
}

/// Kernels have stacks of 16 KiB. A debug build needs more than what ships.
#[test]
fn mapping_and_unmapping_need_little_stack() {
    let change = || {
        let arena = Arena::new(32);
        let mut map = direct_map(&arena, true);
        let all = range(Bytes::gib(511), Bytes::gib(2));
        let (low, high) = all.split_at(Pfn::containing(Bytes::mib(511 * 1024 + 6).0).unwrap());
        map.map(all, Caching::WriteBack, || arena.frame()).unwrap();
        map.unmap(low).unwrap();
        map.unmap(high).unwrap();
        release_tables(&mut map, all).len()
    };
    let frames = { std::thread::Builder::new().stack_size(32 << 10) }.spawn(change).unwrap().join();
    assert_eq!(frames.unwrap(), 4);
}

#[test]
fn unmapping_keeps_the_tables_and_releasing_frees_the_tables() {
    for huge_pages in [false, true] {
        let arena = Arena::new(32);
        let mut map = direct_map(&arena, huge_pages);
        let all = range(Bytes::gib(511), Bytes::gib(2));
        assert_eq!(map.tables_missing(all), 4);
        assert_eq!(tables_needed(all), 4);
        map.map(all, Caching::WriteBack, || arena.frame()).unwrap();
        assert_eq!(arena.used_frames().len(), 4);
        map.unmap(all).unwrap();
        assert!(!is_mapped(&map, all));
        assert_eq!(map.tables_missing(all), 0);
        map.map(all, Caching::WriteBack, || None).unwrap();
        assert!(is_mapped(&map, all));

        let (low, high) = all.split_at(Pfn::containing(Bytes::gib(512).0).unwrap());
        map.unmap(high).unwrap();
        let mut freed = release_tables(&mut map, all);
        assert!(is_mapped(&map, low));
        assert_eq!(freed.len(), 2);
        map.unmap(low).unwrap();
        freed.extend(release_tables(&mut map, low));
        assert_eq!(map.tables_missing(all), 4);
        freed.sort_unstable();
        assert_eq!(freed, arena.used_frames());
    }
}

#[test]
fn a_part_of_a_huge_page_is_unmapped_and_mapped_again_without_more_frames() {
    let arena = Arena::new(32);
    let mut map = direct_map(&arena, true);
    let all = range(Bytes::gib(4), Bytes::gib(3));
    let written = map.map(all, Caching::WriteBack, || arena.frame()).unwrap();
    assert_eq!(written, Bytes(4096 + 8 + 3 * (8 + 8)));
    // The part is the end of the first page, all of the second, and the start of the third.
    let part =
        range(Bytes(Bytes::gib(5).0 - Bytes::mib(2).0), Bytes(Bytes::gib(1).0 + Bytes::mib(6).0));
    let (below, above) = (all.split_at(part.start()).0, all.split_at(part.end()).1);
    for _ in 0..2 {
        map.unmap(part).unwrap();
        assert!(is_mapped(&map, below) && !is_mapped(&map, part) && is_mapped(&map, above));
        assert_eq!(map.tables_missing(all), 0);
        map.map(part, Caching::WriteBack, || None).unwrap();
        assert!(is_mapped(&map, all));
    }
    let located = find_entry(&map.mmu(), map.space, BASE + Bytes::gib(4).0).unwrap();
    assert_eq!(
        (located.level, located.entry.bits()),
        (Level::L2, Bytes::gib(4).0 | 0xe3 | NO_EXECUTE)
    );
    // A page is unmapped as a whole, and then a part of it is mapped again.
    let gigabyte = range(Bytes::gib(5), Bytes::gib(1));
    map.unmap(gigabyte).unwrap();
    let (low, high) = gigabyte.split_at(Pfn::containing(Bytes::mib(5120 + 512).0).unwrap());
    assert_eq!(release_tables(&mut map, low), []);
    map.map(high, Caching::WriteBack, || None).unwrap();
    assert!(is_mapped(&map, high) && !is_mapped(&map, low));
    map.unmap(high).unwrap();
    for part in [below, range(Bytes::gib(6), Bytes::gib(1))] {
        map.unmap(part).unwrap();
    }
    map.unmap(range(Bytes(Bytes::gib(5).0 - Bytes::mib(2).0), Bytes::mib(2))).unwrap();
    assert_eq!(release_tables(&mut map, all), arena.used_frames());
}

#[test]
fn unmapping_an_unmapped_range_changes_nothing() {
    let arena = Arena::new(32);
    let mut map = direct_map(&arena, true);
    let page = range(Bytes::gib(4), Bytes::gib(1));
    map.map(page, Caching::WriteBack, || arena.frame()).unwrap();
    for _ in 0..2 {
        map.unmap(page).unwrap();
        map.unmap(range(Bytes::ZERO, Bytes::gib(1024))).unwrap();
    }
    map.unmap(range(Bytes::gib(4), Bytes::mib(512))).unwrap();
    assert_eq!(release_tables(&mut map, page), arena.used_frames());
}

#[test]
fn refuses_ranges_beyond_the_area_or_without_enough_frames() {
    let arena = Arena::new(32);
    let mut map = direct_map(&arena, true);
    let last = range(Bytes(BYTES.0 - (2 << 20)), Bytes::mib(2));
    assert_eq!(map.map(last, Caching::WriteBack, || None), Err(DirectMapError::NoTableFrame(last)));
    map.map(last, Caching::WriteBack, || arena.frame()).unwrap();
    assert!(is_mapped(&map, last));
    let beyond = range(BYTES, Bytes::mib(2));
    assert_eq!(
        map.map(beyond, Caching::WriteBack, || arena.frame()),
        Err(DirectMapError::BeyondDirectMap(beyond))
    );
    assert!(!map.is_mapped(beyond.start()));
    assert!(!map.is_mapped(Pfn::LIMIT));
}
