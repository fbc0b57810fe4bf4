//! Tests the descriptor map with page tables in an arena of frames.

use super::*;
use crate::area::Area;
use crate::arena::{Arena, Processor, each_format, pfn};
use hotmem_addr::{Bytes, geometry::FRAME_SIZE};

const BASE: u64 = 0xffff_f400_0000_0000;
/// The size of the descriptors for 112 TiB of memory, at 64 bytes for each frame.
const BYTES: Bytes = Bytes(0x1c0_0000_0000);

/// Records the tables that unmapping frees.
struct FreedTables {
    freed_tables: Vec<u64>,
}

type Map<'a, F> = DescriptorMap<&'a Arena, Processor<'a, F>>;

impl FreedTables {
    /// Returns an empty record, and a descriptor map whose tables lie in `arena`.
    fn with_map<F: Format>(arena: &Arena) -> (FreedTables, Map<'_, F>) {
        let layout = DescriptorLayout::new(Area::new(BASE, BYTES).unwrap(), Bytes(64)).unwrap();
        (
            FreedTables { freed_tables: Vec::new() },
            DescriptorMap::new(arena, arena.root(), layout, Processor::new(arena)),
        )
    }

    /// Unmaps pages. Returns the frames that backed the pages, in the order of the callbacks.
    fn unmap<F: Format>(
        &mut self,
        arena: &Arena,
        map: &mut Map<'_, F>,
        pages: Range<u64>,
    ) -> Vec<(PfnRange, Access)> {
        let mut frames = Vec::new();
        let before = arena.flushes.get();
        let flushes = || arena.flushes.get() - before;
        map.unmap(
            pages,
            |range, access| {
                assert_eq!(flushes(), 1);
                frames.push((range, access));
            },
            |table| {
                assert_eq!(flushes(), 2);
                self.freed_tables.push(table.number());
            },
        );
        assert_eq!(flushes(), 2);
        frames
    }
}

fn pfn_range(start: u64, frames: u64) -> PfnRange {
    PfnRange::with_len(pfn(start), frames).unwrap()
}

#[test]
fn a_run_has_large_pages_in_its_middle() {
    fn check<F: Format>() {
        let arena = Arena::new(13);
        let (mut tables, mut map) = FreedTables::with_map::<F>(&arena);
        // The range fills two small pages, two large pages and three small pages.
        let frames = pfn_range(512 * 9 - 2, 2 + 1024 + 3);
        map.map(510, frames, || arena.frame()).unwrap();
        // An L3 and an L2 table, and an L1 table for the small pages at each end.
        assert_eq!(arena.used_frames().len(), 2 + 2);
        for offset in [0, 1, 2, 500, 1025, 1026, 1028] {
            assert_eq!(
                map.frame(510 + offset),
                Some((pfn(512 * 9 - 2 + offset), Access::Write)),
                "{offset}"
            );
        }
        assert_eq!((map.frame(509), map.frame(510 + 1029)), (None, None));
        assert_eq!(
            map.map(512, pfn_range(1, 1), || None),
            Err(DescriptorMapError::AlreadyMapped(512))
        );
        assert_eq!(
            map.map(511, pfn_range(1, 1), || None),
            Err(DescriptorMapError::AlreadyMapped(511))
        );

        assert_eq!(tables.unmap(&arena, &mut map, 510..510 + 1029), [(frames, Access::Write)]);
        assert_eq!(map.frame(512), None);
        tables.freed_tables.sort_unstable();
        assert_eq!(tables.freed_tables, arena.used_frames());
        assert!(arena.is_empty());
    }
    each_format!(check);
}

#[test]
fn one_shared_frame_backs_many_pages() {
    fn check<F: Format>() {
        let arena = Arena::new(13);
        let (mut tables, mut map) = FreedTables::with_map::<F>(&arena);
        let shared = pfn(77);
        for first in [8, 16] {
            map.map(first, pfn_range(1000 + first / 8, 1), || arena.frame()).unwrap();
            map.map_shared(first + 1..first + 8, shared, || arena.frame()).unwrap();
        }
        assert_eq!(map.frame(8), Some((pfn(1001), Access::Write)));
        assert_eq!(map.frame(15), Some((shared, Access::Read)));
        assert_eq!(map.frame(16), Some((pfn(1002), Access::Write)));
        assert_eq!(map.frame(24), None);
        let unmapped = tables.unmap(&arena, &mut map, 0..64);
        let unshared: Vec<_> =
            unmapped.iter().filter(|(_, access)| *access == Access::Write).collect();
        assert_eq!(
            unshared,
            [&(pfn_range(1001, 1), Access::Write), &(pfn_range(1002, 1), Access::Write)]
        );
        let shared_pages = unmapped.iter().filter(|&&(frames, _)| frames == pfn_range(77, 1));
        assert_eq!(shared_pages.count(), 14);
    }
    each_format!(check);
}

#[test]
fn a_shared_frame_is_mapped_across_tables_up_to_a_page_that_is_mapped() {
    fn check<F: Format>() {
        let arena = Arena::new(13);
        let (_, mut map) = FreedTables::with_map::<F>(&arena);
        let (own, shared) = (pfn(1000), pfn(77));
        map.map(1030, pfn_range(1000, 1), || arena.frame()).unwrap();
        let mapped = map.map_shared(500..1100, shared, || arena.frame());
        assert_eq!(mapped, Err(DescriptorMapError::AlreadyMapped(1030)));
        for page in 500..1030 {
            assert_eq!(map.frame(page), Some((shared, Access::Read)));
        }
        assert_eq!((map.frame(499), map.frame(1030)), (None, Some((own, Access::Write))));
        assert_eq!(map.frame(1031), None);
        assert_eq!(map.map_shared(5..5, shared, || None), Ok(()));
        let no_table = map.map_shared(5000..5001, shared, || None);
        assert_eq!(no_table, Err(DescriptorMapError::NoFrame(5000)));
    }
    each_format!(check);
}

#[test]
fn unmapping_leaves_the_pages_of_neighbours_mapped() {
    fn check<F: Format>() {
        let arena = Arena::new(13);
        let (mut tables, mut map) = FreedTables::with_map::<F>(&arena);
        map.map(100, pfn_range(5000, 8), || arena.frame()).unwrap();
        map.map(108, pfn_range(9000, 8), || arena.frame()).unwrap();
        assert_eq!(arena.used_frames().len(), 3);
        assert_eq!(tables.unmap(&arena, &mut map, 100..108), [(pfn_range(5000, 8), Access::Write)]);
        assert_eq!(map.frame(108), Some((pfn(9000), Access::Write)));
        assert!(tables.freed_tables.is_empty());
        assert_eq!(tables.unmap(&arena, &mut map, 108..116), [(pfn_range(9000, 8), Access::Write)]);
        assert_eq!(tables.freed_tables.len(), 3);
        let all = 0..map.layout().pages();
        assert_eq!(tables.unmap(&arena, &mut map, all), []);
    }
    each_format!(check);
}

#[test]
fn refuses_pages_beyond_its_end_and_pages_without_a_table() {
    fn check<F: Format>() {
        let arena = Arena::new(13);
        let (mut tables, mut map) = FreedTables::with_map::<F>(&arena);
        let last = map.layout().pages() - 1;
        assert_eq!(map.map(last, pfn_range(1, 1), || None), Err(DescriptorMapError::NoFrame(last)));
        let beyond = map.map(last, pfn_range(1000, 2), || arena.frame());
        assert_eq!(beyond, Err(DescriptorMapError::NoSuchPage(last + 1)));
        assert_eq!(
            tables.unmap(&arena, &mut map, last..last + 2),
            [(pfn_range(1000, 1), Access::Write)]
        );
        assert_eq!(tables.freed_tables.len(), 3);
        assert!(arena.is_empty());
    }
    each_format!(check);
}

#[test]
fn descriptors_of_two_pageblocks_share_no_page() {
    let area = Area::new(BASE, BYTES).unwrap();
    let layout = DescriptorLayout::new(area, Bytes(64)).unwrap();
    assert_eq!(layout.pages(), BYTES.0 / FRAME_SIZE);
    assert_eq!(layout.pages_of(pfn_range(0, 512)), 0..8);
    assert_eq!(layout.pages_of(pfn_range(512, 512)), 8..16);
    assert_eq!(layout.pages_of(pfn_range(63, 2)), 0..2);
}

#[test]
fn descriptors_of_sizes_that_are_out_of_range_or_share_pages_are_refused() {
    let area = Area::new(BASE, BYTES).unwrap();
    // 0 and sizes above 2048 are out of range. The others share a page with the next pageblock.
    for bytes in [0, 1, 4, 12, 63, 2049, 4096, u64::MAX] {
        let refused = DescriptorLayout::new(area, Bytes(bytes));
        assert_eq!(refused, Err(BadDescriptorSize(Bytes(bytes))));
    }
    assert_eq!(
        BadDescriptorSize(Bytes(63)).to_string(),
        "descriptors of 63B are not supported: empty, larger than half a frame, or not filling \
         whole frames for a pageblock"
    );
    for bytes in [8, 16, 56, 64, 96, 2048] {
        let layout = DescriptorLayout::new(area, Bytes(bytes)).unwrap();
        assert_eq!(
            layout.pages_of(pfn_range(512, 512)).start,
            layout.pages_of(pfn_range(0, 512)).end
        );
    }
}

#[test]
fn hidden_pages_keep_their_frames_and_are_published_when_they_are_shown() {
    fn check<F: Format>() {
        let arena = Arena::new(13);
        let (_, mut map) = FreedTables::with_map::<F>(&arena);
        // A large page, and a small one.
        map.map(512, pfn_range(512, 513), || arena.frame()).unwrap();
        let pages = 512..512 + 513;
        let frames = [512, 513, 1023, 1024].map(|page| map.frame(page));
        assert!(frames.iter().all(Option::is_some));
        map.hide(pages.clone());
        assert_eq!([512, 513, 1023, 1024].map(|page| map.frame(page)), [None; 4]);
        assert!(map.is_large(512) && !map.is_large(1024) && !map.is_large(0));
        let again = map.map(512, pfn_range(512, 1), || None);
        assert_eq!(again, Err(DescriptorMapError::AlreadyMapped(512)));
        arena.published.set(None);
        map.show(pages);
        assert_eq!([512, 513, 1023, 1024].map(|page| map.frame(page)), frames);
        let published = arena.published.get().unwrap();
        let expected = (BASE + 512 * FRAME_SIZE, Bytes(513 * FRAME_SIZE));
        assert_eq!((published.start(), published.bytes()), expected);
    }
    each_format!(check);
}
