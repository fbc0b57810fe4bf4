//! Tables in an arena of frames.

use super::*;
use crate::frame_words::FrameWords;

/// Memory for tables: frame 0 is the root, the others come as they are asked for.
struct Tables {
    frames: Vec<[u64; 512]>,
    next: u64,
    back: Vec<u64>,
}

impl Tables {
    fn new() -> (Tables, DescriptorMap) {
        let mut frames = vec![[u64::MAX; 512]; 12];
        frames[0] = [0; 512];
        let offset = frames.as_mut_ptr().expose_provenance();
        let memory = FrameWords::at_offset(offset);
        // SAFETY: the frames live as long as the test and are reached through the map only.
        let tables = unsafe { FrameTables::new(memory) };
        let map = DescriptorMap::new(tables, Space::new(pfn(0), Level::L4));
        (Tables { frames, next: 1, back: Vec::new() }, map)
    }

    fn frame(&mut self) -> Option<Pfn> {
        let frame = self.next;
        self.next += 1;
        (frame < self.frames.len() as u64).then(|| pfn(frame))
    }

    /// Unmaps, and says which frames came back in what order.
    fn unmap(&mut self, map: &mut DescriptorMap, pages: Range<u64>) -> Vec<(PfnRange, Access)> {
        let (mut frames, mut flushed) = (Vec::new(), 0);
        let flushes = core::cell::Cell::new(0);
        map.unmap(
            pages,
            || flushes.set(flushes.get() + 1),
            |range, access| {
                assert_eq!(flushes.get(), 1);
                frames.push((range, access));
            },
            |table| {
                assert_eq!(flushes.get(), 2);
                flushed += 1;
                self.back.push(table.number());
            },
        );
        assert_eq!(flushes.get(), 2);
        frames
    }
}

fn pfn(number: u64) -> Pfn {
    Pfn::new(number).unwrap()
}

fn run(start: u64, frames: u64) -> PfnRange {
    PfnRange::with_len(pfn(start), frames).unwrap()
}

#[test]
fn a_run_has_large_pages_in_its_middle() {
    let (mut tables, mut map) = Tables::new();
    // Two small pages, two large ones, three small ones.
    let frames = run(512 * 9 - 2, 2 + 1024 + 3);
    map.map(510, frames, || tables.frame()).unwrap();
    // Three levels, and a table for each end.
    assert_eq!(tables.next, 1 + 2 + 2);
    for n in [0, 1, 2, 500, 1025, 1026, 1028] {
        assert_eq!(map.frame(510 + n), Some((pfn(512 * 9 - 2 + n), Access::Write)), "{n}");
    }
    assert_eq!((map.frame(509), map.frame(510 + 1029)), (None, None));
    assert_eq!(map.map(512, run(1, 1), || None), Err(MapError::Taken(512)));
    assert_eq!(map.map(511, run(1, 1), || None), Err(MapError::Taken(511)));

    assert_eq!(tables.unmap(&mut map, 510..510 + 1029), [(frames, Access::Write)]);
    assert_eq!(map.frame(512), None);
    tables.back.sort_unstable();
    assert_eq!(tables.back, [1, 2, 3, 4]);
    assert_eq!(tables.frames[0], [0; 512]);
}

#[test]
fn one_frame_is_shown_by_many_pages() {
    let (mut tables, mut map) = Tables::new();
    let shared = pfn(77);
    let backing = |page: u64| match page % 8 {
        0 => (page, pfn(1000 + page / 8), Access::Write),
        _ => (page, shared, Access::Read),
    };
    map.map_each((8..24).map(backing), || tables.frame()).unwrap();
    assert_eq!(map.frame(8), Some((pfn(1001), Access::Write)));
    assert_eq!(map.frame(15), Some((shared, Access::Read)));
    assert_eq!(map.frame(16), Some((pfn(1002), Access::Write)));
    assert_eq!(map.frame(24), None);
    let seen = tables.unmap(&mut map, 0..64);
    let own: Vec<_> = seen.iter().filter(|(_, access)| *access == Access::Write).collect();
    assert_eq!(own, [&(run(1001, 1), Access::Write), &(run(1002, 1), Access::Write)]);
    let shown = seen.iter().filter(|&&(frames, _)| frames == run(77, 1));
    assert_eq!(shown.count(), 14);
}

#[test]
fn neighbours_keep_what_is_theirs() {
    let (mut tables, mut map) = Tables::new();
    map.map(100, run(5000, 8), || tables.frame()).unwrap();
    map.map(108, run(9000, 8), || tables.frame()).unwrap();
    assert_eq!(tables.next, 4);
    assert_eq!(tables.unmap(&mut map, 100..108), [(run(5000, 8), Access::Write)]);
    assert_eq!(map.frame(108), Some((pfn(9000), Access::Write)));
    assert!(tables.back.is_empty());
    assert_eq!(tables.unmap(&mut map, 108..116), [(run(9000, 8), Access::Write)]);
    assert_eq!(tables.back.len(), 3);
    assert_eq!(tables.unmap(&mut map, 0..PAGES), []);
}

#[test]
fn refuses_what_there_is_no_room_for_and_forgets_it() {
    let (mut tables, mut map) = Tables::new();
    let last = PAGES - 1;
    assert_eq!(map.map(last, run(1, 1), || None), Err(MapError::NoTable(last)));
    let beyond = map.map(last, run(1000, 2), || tables.frame());
    assert_eq!(beyond, Err(MapError::NoSuchPage(PAGES)));
    assert_eq!(tables.unmap(&mut map, last..PAGES + 1), [(run(1000, 1), Access::Write)]);
    assert_eq!(tables.back.len(), 3);
    assert_eq!(tables.frames[0], [0; 512]);
}

#[test]
fn pageblocks_have_pages_of_their_own() {
    assert_eq!(pages_of(run(0, 512)), 0..8);
    assert_eq!(pages_of(run(512, 512)), 8..16);
    assert_eq!(pages_of(run(63, 2)), 0..2);
    assert_eq!(PAGES * FRAME_SIZE, 0x1c0_0000_0000);
}
