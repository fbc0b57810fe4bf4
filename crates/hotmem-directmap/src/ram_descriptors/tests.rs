//! Tests that mapping descriptors takes at most as many frames as `frames_needed` returns, and that
//! unmapping frees all of them.

use super::*;
use crate::area::Area;
use crate::arena::{Arena, Processor, pfn};
use hotmem_addr::{Bytes, geometry::PAGEBLOCK_FRAMES};
use hotmem_pgtable::X86_64;
use std::collections::BTreeSet;

const BLOCK_FRAMES: u64 = PAGEBLOCK_FRAMES as u64;

type Map<'a> = DescriptorMap<&'a Arena, Processor<'a, X86_64>>;

/// Frames for tables and for descriptors.
struct Memory<'a> {
    arena: &'a Arena,
    used_frames: BTreeSet<u64>,
}

impl<'a> Memory<'a> {
    fn new(arena: &'a Arena) -> Memory<'a> {
        Memory { arena, used_frames: BTreeSet::new() }
    }

    /// Returns a map of descriptors of this many bytes.
    fn descriptors(&self, bytes: u64) -> Map<'a> {
        let area = Area::new(0xffff_f400_0000_0000, Bytes::gib(4096)).unwrap();
        let layout = DescriptorLayout::new(area, Bytes(bytes)).unwrap();
        DescriptorMap::new(self.arena, self.arena.root(), layout, Processor::new(self.arena))
    }

    /// Maps the descriptors of `range` with at most as many frames as `frames_needed` returns.
    fn map(&mut self, map: &mut Map<'_>, range: PfnRange) {
        let mut frames_left = map.frames_needed(range);
        let mapped = map.map_ram(range, || {
            frames_left = frames_left.checked_sub(1)?;
            let frame = self.arena.frame().unwrap();
            assert!(self.used_frames.insert(frame.number()));
            Some(frame)
        });
        mapped.unwrap();
    }

    fn unmap(&mut self, map: &mut Map<'_>, range: PfnRange) {
        let free = &mut |frame: Pfn| {
            assert!(self.used_frames.remove(&frame.number()), "{frame} is freed but was not taken");
        };
        map.unmap_ram(range, free);
    }
}

/// Returns the frames of `count` pageblocks, of which the first has the number `first`.
fn blocks(first: u64, count: u64) -> PfnRange {
    PfnRange::with_len(pfn(first * BLOCK_FRAMES), count * BLOCK_FRAMES).unwrap()
}

fn descriptor_frame(map: &Map<'_>, block: u64) -> Option<u64> {
    let pages = map.layout().pages_of(blocks(block, 1));
    let frames: Vec<_> = pages.map(|page| map.frame(page)).collect();
    assert!(frames.iter().all(|frame| frame.is_some() == frames[0].is_some()));
    Some(frames[0]?.0.number())
}

#[test]
fn descriptors_that_are_mapped_already_keep_their_frames() {
    let arena = Arena::new(2000);
    let mut memory = Memory::new(&arena);
    let mut map = memory.descriptors(64);
    memory.map(&mut map, blocks(70, 3));
    let before = [70, 71, 72].map(|block| descriptor_frame(&map, block));
    let used_frames = memory.used_frames.len();
    memory.map(&mut map, blocks(69, 3));
    assert_eq!([70, 71, 72].map(|block| descriptor_frame(&map, block)), before);
    // One pageblock more is described, so eight frames more are taken.
    assert_eq!(memory.used_frames.len(), used_frames + 8);
    memory.unmap(&mut map, blocks(69, 4));
    assert!(memory.used_frames.is_empty());
}

#[test]
fn a_whole_section_holds_its_descriptors_until_its_last_pageblock_is_removed() {
    let arena = Arena::new(2000);
    let mut memory = Memory::new(&arena);
    let mut map = memory.descriptors(64);
    // The range is a part of a section, two whole sections, and a part of a section.
    let all = blocks(10, 54 + 128 + 3);
    memory.map(&mut map, all);
    for (section, block) in [(1, 64), (1, 127), (2, 128), (2, 191)] {
        assert_eq!(descriptor_frame(&map, block), Some(section * SECTION_FRAMES + block % 64 * 8));
    }
    for block in [10, 63, 192, 194] {
        assert!(memory.used_frames.contains(&descriptor_frame(&map, block).unwrap()));
    }
    assert_eq!((descriptor_frame(&map, 9), descriptor_frame(&map, 195)), (None, None));
    // An L3 and an L2 table, two L1 tables for small pages, and the descriptors of 57 pageblocks.
    assert_eq!(memory.used_frames.len(), 2 + 2 + 57 * 8);

    let before = memory.used_frames.len();
    memory.unmap(&mut map, blocks(129, 63));
    assert_eq!(descriptor_frame(&map, 191), Some(2 * SECTION_FRAMES + 63 * 8));
    memory.map(&mut map, blocks(140, 20));
    assert_eq!(memory.used_frames.len(), before);
    // With the first pageblock of a section that holds its own descriptors, the pages of the whole
    // section are to be unmapped.
    assert_eq!(map.pages_to_unmap(blocks(128, 64)), map.layout().pages_of(blocks(128, 64)));
    assert_eq!(map.pages_to_unmap(blocks(128, 3)), map.layout().pages_of(blocks(128, 64)));
    assert_eq!(map.pages_to_unmap(blocks(129, 3)), map.layout().pages_of(blocks(129, 3)));
    assert_eq!(map.pages_to_unmap(blocks(192, 3)), map.layout().pages_of(blocks(192, 3)));

    memory.unmap(&mut map, blocks(192, 3));
    assert_eq!(memory.used_frames.len(), before - 3 * 8 - 1);
    memory.unmap(&mut map, blocks(128, 5));
    assert_eq!((descriptor_frame(&map, 128), descriptor_frame(&map, 191)), (None, None));
    memory.unmap(&mut map, blocks(10, 118));
    assert!(memory.used_frames.is_empty());
    assert!(arena.is_empty());
}

#[test]
fn parts_of_a_section_take_frames_and_unmapping_frees_the_frames() {
    let arena = Arena::new(2000);
    let mut memory = Memory::new(&arena);
    let mut map = memory.descriptors(64);
    for part in [blocks(67, 1), blocks(64, 2), blocks(74, 54)] {
        memory.map(&mut map, part);
    }
    assert_eq!((descriptor_frame(&map, 66), descriptor_frame(&map, 69)), (None, None));
    for part in [blocks(74, 54), blocks(64, 2), blocks(67, 1)] {
        memory.unmap(&mut map, part);
    }
    assert!(memory.used_frames.is_empty());
    // No descriptor of the section is mapped any more, so the section can be added as a whole.
    memory.map(&mut map, blocks(64, 64));
    assert_eq!(descriptor_frame(&map, 127), Some(SECTION_FRAMES + 63 * 8));
}

#[test]
fn hidden_descriptors_are_shown_again() {
    let arena = Arena::new(2000);
    let mut memory = Memory::new(&arena);
    let mut map = memory.descriptors(64);
    let all = blocks(60, 4 + 64);
    memory.map(&mut map, all);
    map.hide(map.pages_to_unmap(all));
    assert_eq!((descriptor_frame(&map, 60), descriptor_frame(&map, 100)), (None, None));
    assert!(map.is_large(map.layout().pages_of(all).end - 1));
    map.show(map.pages_to_unmap(all));
    assert_eq!(descriptor_frame(&map, 100), Some(SECTION_FRAMES + 36 * 8));
    map.hide(map.pages_to_unmap(all));
    memory.unmap(&mut map, all);
    assert!(memory.used_frames.is_empty());
}

#[test]
fn mapping_fails_with_fewer_frames_than_frames_needed() {
    let range = blocks(64, 2);
    let needed = Memory::new(&Arena::new(1)).descriptors(64).frames_needed(range);
    for available in 0..needed {
        let arena = Arena::new(2000);
        let mut frames = (2..available + 2).map(pfn);
        let mut map = Memory::new(&arena).descriptors(64);
        let mapped = map.map_ram(range, || frames.next());
        assert!(matches!(mapped, Err(DescriptorMapError::NoFrame(_))), "{available}");
    }
}

#[test]
fn descriptors_of_every_supported_size_are_mapped_and_unmapped() {
    for (bytes, own_frames) in [(8, 0), (32, 0), (56, 0), (64, 512), (96, 0), (128, 1024)] {
        for range in [blocks(64, 64), blocks(10, 118), blocks(3, 2)] {
            // The arena ends below pageblock 3, so that no frame of the arena lies in `range`.
            let arena = Arena::new(1500);
            let mut memory = Memory::new(&arena);
            let mut map = memory.descriptors(bytes);
            assert_eq!(map.layout().frames_per_section(), own_frames);
            memory.map(&mut map, range);
            assert!(map.layout().pages_of(range).all(|page| map.frame(page).is_some()));
            let section_pages = map.layout().pages_of(blocks(64, 64));
            assert_eq!(
                map.is_large(section_pages.start),
                own_frames > 0 && range.frames() >= SECTION_FRAMES
            );
            memory.unmap(&mut map, range);
            assert!(memory.used_frames.is_empty() && arena.is_empty(), "{bytes}: {range:?}");
        }
    }
}
