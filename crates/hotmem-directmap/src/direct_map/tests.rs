//! Tests the direct map with page tables in an arena of frames.

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

/// A pool of frames for tables, and requests that are in flight on one direct map, as the engine
/// makes them.
struct Machine<'a> {
    map: Map<'a>,
    free_frames: Vec<Pfn>,
    additions: Vec<(PfnRange, Vec<Pfn>)>,
    removals: Vec<PfnRange>,
    mapped: Vec<PfnRange>,
}

impl Machine<'_> {
    fn is_unused(&self, range: PfnRange) -> bool {
        let additions = self.additions.iter().map(|(range, _)| range);
        let mut used = additions.chain(&self.removals).chain(&self.mapped);
        used.all(|used| used.intersection(range).is_empty())
    }

    /// Prepares an addition: sets frames aside for its tables.
    fn prepare_add(&mut self, range: PfnRange) {
        let needed = usize::try_from(tables_needed(range)).unwrap();
        let frames = self.free_frames.split_off(self.free_frames.len() - needed);
        self.additions.push((range, frames));
    }

    fn end_add(&mut self, nth: usize, is_committed: bool) {
        let (range, mut frames) = self.additions.swap_remove(nth);
        if is_committed {
            self.map.map(range, Caching::WriteBack, || frames.pop()).unwrap();
            self.mapped.push(range);
        }
        self.free_frames.extend(frames);
    }

    fn prepare_remove(&mut self, nth: usize) {
        let range = self.mapped.swap_remove(nth);
        self.map.unmap(range).unwrap();
        self.removals.push(range);
    }

    fn end_remove(&mut self, nth: usize, is_committed: bool) {
        let range = self.removals.swap_remove(nth);
        if is_committed {
            let Machine { map, free_frames, .. } = self;
            map.release_tables(range, |frame| free_frames.push(frame));
        } else {
            self.map.map(range, Caching::WriteBack, || None).unwrap();
            self.mapped.push(range);
        }
    }
}

/// Requests of several devices are in flight, and end in any order. None lacks a frame that it was
/// promised, and nothing is left of them.
#[test]
fn requests_in_flight_end_in_any_order() {
    const FRAMES: usize = 1000;
    let mut random = 1_u64;
    let mut random = |below: usize| {
        // A linear congruential generator (Knuth, MMIX).
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % below
    };
    for huge_pages in [false, true] {
        let arena = Arena::new(FRAMES);
        let mut machine = Machine {
            map: direct_map(&arena, huge_pages),
            free_frames: std::iter::from_fn(|| arena.frame()).collect(),
            additions: vec![],
            removals: vec![],
            mapped: vec![],
        };
        let all_frames = machine.free_frames.len();
        for _ in 0..20_000 {
            match random(7) {
                0 if machine.additions.len() < 8 => {
                    // Memory of up to 2.5 GiB around the border of 512 GiB.
                    let start = Bytes::mib(510 * 1024 + 256 * random(16) as u64);
                    let requested = range(start, Bytes::mib([2, 256, 1024, 2560][random(4)]));
                    if machine.is_unused(requested) {
                        machine.prepare_add(requested);
                    }
                }
                1 | 2 if !machine.additions.is_empty() => {
                    let nth = random(machine.additions.len());
                    machine.end_add(nth, random(4) != 0);
                }
                3 if !machine.mapped.is_empty() => {
                    let nth = random(machine.mapped.len());
                    machine.prepare_remove(nth);
                }
                4 if !machine.removals.is_empty() => {
                    let removal = machine.removals.swap_remove(random(machine.removals.len()));
                    let pages = usize::try_from(removal.frames() / LARGE_FRAMES).unwrap();
                    let below = LARGE_FRAMES * random(pages) as u64;
                    let (below, above) =
                        removal.split_at(removal.start().checked_add(below).unwrap());
                    let parts = [below, above].into_iter().filter(|part| !part.is_empty());
                    machine.removals.extend(parts);
                }
                _ if !machine.removals.is_empty() => {
                    let nth = random(machine.removals.len());
                    machine.end_remove(nth, random(2) == 0);
                }
                _ => {}
            }
            for &mapped in &machine.mapped {
                let last = Pfn::new(mapped.end().number() - 1).unwrap();
                assert!(machine.map.is_mapped(mapped.start()) && machine.map.is_mapped(last));
            }
        }
        while !machine.additions.is_empty() {
            machine.end_add(0, false);
        }
        while !machine.mapped.is_empty() {
            machine.prepare_remove(0);
        }
        while !machine.removals.is_empty() {
            machine.end_remove(0, true);
        }
        assert!(arena.is_empty());
        assert_eq!(machine.free_frames.len(), all_frames);
    }
}
