//! RAM in the descriptor map: where its descriptors lie.
//!
//! The descriptors of a section fill 2 MiB. A section that comes as a whole has them in its own
//! first 2 MiB, behind one large page of the map; what comes in smaller parts has them in frames of
//! other memory. What comes back to a section whose first 2 MiB have stayed finds its descriptors
//! there.

use crate::descriptor_map::{Access, DescriptorMap, MapError, pages_of};
use core::ops::Range;
use hotmem::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use hotmem::{Pfn, PfnRange};

/// Pages of the map that one of its tables has entries for, by level.
const IN_DIRECTORY: u64 = 512 * 512;
const IN_POINTER_TABLE: u64 = 512 * IN_DIRECTORY;

/// What a section that comes as a whole has of its own for its descriptors, in pageblocks.
pub const KEPT: u64 = 1;

/// Frames that the descriptors of `range` need at most, and the tables of the map.
#[must_use]
pub fn needed(map: &DescriptorMap, range: PfnRange) -> u64 {
    let pages = pages_of(range);
    let tables = |covered: u64| pages.end.div_ceil(covered) - pages.start / covered;
    let upper = tables(IN_DIRECTORY) + tables(IN_POINTER_TABLE);
    let parts = range.sections().filter(|&part| !is_whole(part) && !is_mapped(map, part));
    let lower: u64 = parts.map(|part| pages_of(part).count() as u64 + 1).sum();
    upper + lower
}

/// Puts frames behind the descriptors of `range`, whole pageblocks that have none, as many from
/// `frame` as are [`needed`].
///
/// # Errors
/// [`MapError`]. What was mapped so far stays mapped.
pub fn map(
    map: &mut DescriptorMap,
    range: PfnRange,
    mut frame: impl FnMut() -> Option<Pfn>,
) -> Result<(), MapError> {
    for part in range.sections() {
        let pages = pages_of(part);
        if is_whole(part) {
            map.map(pages.start, first_pageblock(part), &mut frame)?;
        } else if !is_mapped(map, part) {
            for page in pages {
                let behind = frame().ok_or(MapError::NoTable(page))?;
                let behind = [(page, behind, Access::Write)];
                map.map_each(behind.into_iter(), &mut frame)?;
            }
        }
    }
    Ok(())
}

/// The pages of the map that go with `range`: those of what it describes, and all of a section's
/// where it is the last of a section that holds its own descriptors.
#[must_use]
pub fn pages_with(map: &DescriptorMap, range: PfnRange) -> Range<u64> {
    let pages = pages_of(range);
    let Some(last) = range.end().number().checked_sub(1).and_then(Pfn::new) else { return pages };
    let section = PfnRange::with_len(last.align_down(SECTION_FRAMES as u64), SECTION_FRAMES as u64);
    match section.filter(|section| range.contains(section.start())).map(pages_of) {
        Some(of_section) if map.is_large(of_section.start) => pages.start..of_section.end,
        _ => pages,
    }
}

/// Takes the descriptors of `range` away. Frames that held them and are none of `range` itself, and
/// tables that served nothing else, go to `free`.
pub fn unmap(
    map: &mut DescriptorMap,
    range: PfnRange,
    flush: impl FnMut(),
    free: &mut dyn FnMut(Pfn),
) {
    let free = core::cell::RefCell::new(free);
    let pages = pages_with(map, range);
    let back = |frames: PfnRange, _| {
        let others = frames.chunks(1).map(PfnRange::start).filter(|&frame| !range.contains(frame));
        others.for_each(|frame| (free.borrow_mut())(frame));
    };
    map.unmap(pages, flush, back, |table| (free.borrow_mut())(table));
}

fn is_whole(part: PfnRange) -> bool {
    part.frames() == SECTION_FRAMES as u64
}

/// Whether the descriptors of a part of a section lie in its first 2 MiB, which have stayed.
fn is_mapped(map: &DescriptorMap, part: PfnRange) -> bool {
    map.is_large(pages_of(part).start)
}

fn first_pageblock(section: PfnRange) -> PfnRange {
    PfnRange::with_len(section.start(), KEPT * PAGEBLOCK_FRAMES as u64).unwrap_or(PfnRange::EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame_words::FrameWords;
    use crate::tables::FrameTables;
    use hotmem_pgtable::{Level, Space};
    use std::collections::BTreeSet;

    const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;
    const SECTION: u64 = SECTION_FRAMES as u64;

    /// Memory for tables, of which frame 0 is the root; other frames are only numbers.
    struct Memory {
        frames: Vec<[u64; 512]>,
        next: u64,
        taken: BTreeSet<u64>,
    }

    impl Memory {
        fn new() -> (Memory, DescriptorMap) {
            let mut frames = vec![[u64::MAX; 512]; 2000];
            frames[0] = [0; 512];
            let memory = FrameWords::at_offset(frames.as_mut_ptr().expose_provenance());
            // SAFETY: the frames live as long as the test and are reached through the map only.
            let tables = unsafe { FrameTables::new(memory) };
            let map = DescriptorMap::new(tables, Space::new(pfn(0), Level::L4));
            (Memory { frames, next: 1, taken: BTreeSet::new() }, map)
        }

        /// Maps with what was said to be needed, and no more.
        fn map(&mut self, map: &mut DescriptorMap, range: PfnRange) {
            let mut left = needed(map, range);
            super::map(map, range, || {
                left = left.checked_sub(1)?;
                self.next += 1;
                assert!(self.next <= self.frames.len() as u64 && self.taken.insert(self.next - 1));
                Some(pfn(self.next - 1))
            })
            .unwrap();
        }

        fn unmap(&mut self, map: &mut DescriptorMap, range: PfnRange) {
            let free = &mut |frame: Pfn| {
                assert!(self.taken.remove(&frame.number()), "{frame} was not taken");
            };
            super::unmap(map, range, || {}, free);
        }
    }

    fn pfn(number: u64) -> Pfn {
        Pfn::new(number).unwrap()
    }

    /// So many pageblocks from this one on.
    fn blocks(first: u64, count: u64) -> PfnRange {
        PfnRange::with_len(pfn(first * BLOCK), count * BLOCK).unwrap()
    }

    fn behind(map: &DescriptorMap, block: u64) -> Option<u64> {
        let pages = pages_of(blocks(block, 1));
        let frames: Vec<_> = pages.map(|page| map.frame(page)).collect();
        assert!(frames.iter().all(|frame| frame.is_some() == frames[0].is_some()));
        Some(frames[0]?.0.number())
    }

    #[test]
    fn a_whole_section_describes_itself_until_its_last_pageblock_goes() {
        let (mut memory, mut map) = Memory::new();
        // A part of a section, two whole ones, and a part again.
        let all = blocks(10, 54 + 128 + 3);
        memory.map(&mut map, all);
        for (section, block) in [(1, 64), (1, 127), (2, 128), (2, 191)] {
            assert_eq!(behind(&map, block), Some(section * SECTION + block % 64 * 8));
        }
        for block in [10, 63, 192, 194] {
            assert!(memory.taken.contains(&behind(&map, block).unwrap()));
        }
        assert_eq!((behind(&map, 9), behind(&map, 195)), (None, None));
        // Three tables above, two tables for small pages, and the frames of 57 pageblocks.
        assert_eq!(memory.taken.len(), 2 + 2 + 57 * 8);

        let before = memory.taken.len();
        memory.unmap(&mut map, blocks(129, 63));
        assert_eq!(behind(&map, 191), Some(2 * SECTION + 63 * 8));
        memory.map(&mut map, blocks(140, 20));
        assert_eq!(memory.taken.len(), before);
        assert_eq!(pages_with(&map, blocks(128, 64)), pages_of(blocks(128, 64)));
        assert_eq!(pages_with(&map, blocks(128, 3)), pages_of(blocks(128, 64)));
        assert_eq!(pages_with(&map, blocks(129, 3)), pages_of(blocks(129, 3)));
        assert_eq!(pages_with(&map, blocks(192, 3)), pages_of(blocks(192, 3)));

        memory.unmap(&mut map, blocks(192, 3));
        assert_eq!(memory.taken.len(), before - 3 * 8 - 1);
        memory.unmap(&mut map, blocks(128, 5));
        assert_eq!((behind(&map, 128), behind(&map, 191)), (None, None));
        memory.unmap(&mut map, blocks(10, 118));
        assert!(memory.taken.is_empty());
        assert_eq!(memory.frames[0], [0; 512]);
    }

    #[test]
    fn parts_of_a_section_need_frames_each_and_give_them_back() {
        let (mut memory, mut map) = Memory::new();
        for part in [blocks(67, 1), blocks(64, 2), blocks(74, 54)] {
            memory.map(&mut map, part);
        }
        assert_eq!((behind(&map, 66), behind(&map, 69)), (None, None));
        for part in [blocks(74, 54), blocks(64, 2), blocks(67, 1)] {
            memory.unmap(&mut map, part);
        }
        assert!(memory.taken.is_empty());
        // Now it may come as a whole.
        memory.map(&mut map, blocks(64, 64));
        assert_eq!(behind(&map, 127), Some(SECTION + 63 * 8));
    }

    #[test]
    fn what_is_hidden_is_shown_again() {
        let (mut memory, mut map) = Memory::new();
        let all = blocks(60, 4 + 64);
        memory.map(&mut map, all);
        map.hide(pages_with(&map, all));
        assert_eq!((behind(&map, 60), behind(&map, 100)), (None, None));
        assert!(map.is_large(pages_of(all).end - 1));
        map.show(pages_with(&map, all));
        assert_eq!(behind(&map, 100), Some(SECTION + 36 * 8));
        map.hide(pages_with(&map, all));
        memory.unmap(&mut map, all);
        assert!(memory.taken.is_empty());
    }

    #[test]
    fn fewer_frames_than_are_needed_are_not_enough() {
        let range = blocks(64, 2);
        let (_empty, map) = Memory::new();
        for enough in 0..needed(&map, range) {
            let (_memory, mut map) = Memory::new();
            let mut frames = (1..=enough).map(pfn);
            let mapped = super::map(&mut map, range, || frames.next());
            assert!(matches!(mapped, Err(MapError::NoTable(_))), "{enough}");
        }
    }
}
