//! Tests the direct map in each format: the bits of its entries, and the sizes of its pages.

use super::range;
use crate::arena::{Arena, Processor};
use crate::{Area, Attributes, Caching, DirectMap, DirectMapError};
use core::sync::atomic::Ordering;
use hotmem_addr::Bytes;
use hotmem_pgtable::{
    Aarch64, Format, Level, NativeFault, Riscv64, StopReason, Tables, X86_64, find_entry,
};

const BASE: u64 = 0xffff_8000_0000_0000;

type Map<'a, F> = DirectMap<&'a Arena, Processor<'a, F>>;

fn four_levels() -> Area {
    Area::new(BASE, Bytes::gib(1024)).unwrap()
}

fn map<F: Format>(arena: &Arena, area: Area) -> Map<'_, F> {
    DirectMap::new(arena, arena.root(), area, true, Processor::new(arena))
}

/// Returns the level and the bits of the entry for a physical address.
fn entry<F: Format>(map: &Map<'_, F>, address: Bytes) -> (Level, u64) {
    let virt = map.area.address(address.0).unwrap();
    let located = find_entry(&map.mmu(), map.space, virt).unwrap();
    (located.level, located.entry.bits())
}

#[test]
fn aarch64_maps_blocks_of_2_mib_with_the_bits_of_the_manual() {
    let arena = Arena::new(32);
    let mut map = map::<Aarch64>(&arena, four_levels());
    let memory = range(Bytes::gib(4), Bytes::gib(1));
    map.map(memory, Caching::WriteBack, || arena.frame()).unwrap();
    // Block, attribute 0, EL1 only, inner shareable, AF, nG, DBM, PXN and UXN.
    let bits = 0xf01 | 1 << 51 | 1 << 53 | 1 << 54;
    let last = Bytes::mib(5 * 1024 - 2);
    assert_eq!(entry(&map, Bytes::gib(4)), (Level::L2, Bytes::gib(4).0 | bits));
    assert_eq!(entry(&map, last), (Level::L2, last.0 | bits));
    let device = range(Bytes::gib(6), Bytes::mib(2));
    map.map(device, Caching::Uncached, || arena.frame()).unwrap();
    // Attribute 1, and not shareable.
    assert_eq!(entry(&map, Bytes::gib(6)), (Level::L2, Bytes::gib(6).0 | bits & !0x300 | 1 << 2));
}

#[test]
fn aarch64_unmaps_a_part_of_a_gigabyte_without_a_split() {
    let arena = Arena::new(32);
    let mut map = map::<Aarch64>(&arena, four_levels());
    let memory = range(Bytes::gib(4), Bytes::gib(1));
    map.map(memory, Caching::WriteBack, || arena.frame()).unwrap();
    let tables = arena.used_frames().len();
    assert_eq!(tables, 2, "an L3 and an L2 table, and none in reserve for a split");
    let (first, rest) = memory.split_at(memory.start().checked_add(512).unwrap());
    map.unmap(first).unwrap();
    assert!(!map.is_mapped(first.start()) && map.is_mapped(rest.start()));
    assert_eq!(arena.flushes.get(), 1);
    map.map(first, Caching::WriteBack, || None).unwrap();
    assert!(map.is_mapped(first.start()));
}

#[test]
fn a_gigabyte_block_that_the_map_has_not_made_is_not_split_on_aarch64() {
    let arena = Arena::new(32);
    let mut map = map::<Aarch64>(&arena, four_levels());
    let memory = range(Bytes::gib(4), Bytes::gib(1));
    // The boot code has mapped a block of 1 GiB, and a table is in reserve.
    map.huge_pages = true;
    map.map(memory, Caching::WriteBack, || arena.frame()).unwrap();
    let before = entry(&map, Bytes::gib(4));
    assert_eq!(before.0, Level::L3);
    let (first, _) = memory.split_at(memory.start().checked_add(512).unwrap());
    let stopped = map.unmap(first).unwrap_err();
    assert!(matches!(stopped.reason, StopReason::Mmu(NativeFault::SplitInPlace(_))), "{stopped:?}");
    assert_eq!((entry(&map, Bytes::gib(4)), arena.flushes.get()), (before, 0));
    map.unmap(memory).unwrap();
    assert!(!map.is_mapped(memory.start()));
}

#[test]
fn riscv64_maps_pages_of_1_gib_and_splits_them_with_three_and_with_four_levels() {
    let half = Bytes::gib(256);
    let three_levels = Area::of_three_levels(half.0.wrapping_neg(), half).unwrap();
    for (area, tables) in [(three_levels, 1), (four_levels(), 2)] {
        let arena = Arena::new(32);
        let mut map = map::<Riscv64>(&arena, area);
        let memory = range(Bytes::gib(4), Bytes::gib(1));
        map.map(memory, Caching::WriteBack, || arena.frame()).unwrap();
        assert_eq!(arena.used_frames().len(), tables, "one in reserve for a split");
        // D, A, W, R and V.
        assert_eq!(entry(&map, Bytes::gib(4)), (Level::L3, Bytes::gib(4).0 >> 2 | 0xc7));
        map.unmap(range(Bytes::gib(4), Bytes::mib(2))).unwrap();
        assert!(!map.is_mapped(memory.start()));
        let second = Bytes(Bytes::gib(4).0 + Bytes::mib(2).0);
        assert_eq!(entry(&map, second), (Level::L2, second.0 >> 2 | 0xc7));
        map.unmap(memory).unwrap();
        let mut freed = Vec::new();
        map.release_tables(memory, |frame| freed.push(frame.number()));
        freed.sort_unstable();
        assert_eq!(freed, arena.used_frames());
    }
}

#[test]
fn mapped_memory_is_published() {
    fn check<F: Format>() {
        let arena = Arena::new(32);
        let mut map = map::<F>(&arena, four_levels()).with_attributes(Attributes::KERNEL_DATA);
        let memory = range(Bytes::gib(4), Bytes::gib(1));
        map.map(memory, Caching::WriteBack, || arena.frame()).unwrap();
        let published = arena.published.get().unwrap();
        assert_eq!((published.start(), published.bytes()), (BASE + Bytes::gib(4).0, Bytes::gib(1)));
    }
    check::<X86_64>();
    check::<Aarch64>();
    check::<Riscv64>();
}

/// The root of a kernel with 39-bit addresses has blocks of 1 GiB, which a root of four levels has not.
#[test]
fn a_root_of_three_levels_is_refused_where_four_were_said() {
    let arena = Arena::new(32);
    let block = Bytes::gib(1).0 | 0x705;
    let tables = &arena;
    let root = tables.table(arena.root()).unwrap();
    root[0].store(block, Ordering::Relaxed);
    root[1].store(block, Ordering::Relaxed);
    let memory = range(Bytes::gib(1), Bytes::mib(4));
    let mut map = map::<Aarch64>(&arena, Area::new(0, Bytes::gib(1024)).unwrap());
    let Err(DirectMapError::Tables(stopped)) =
        map.map(memory, Caching::WriteBack, || arena.frame())
    else {
        panic!("the memory counts as mapped");
    };
    let StopReason::Occupied(entry) = stopped.reason else { panic!("{stopped}") };
    assert_eq!((stopped.address, entry.bits()), (memory.start().phys_addr(), block));
    assert!(!map.is_mapped(memory.start()));
    // With the right number of levels, the block is what maps the memory.
    let area = Area::of_three_levels(0, Bytes::gib(256)).unwrap();
    let mut map =
        DirectMap::new(&arena, arena.root(), area, true, Processor::<Aarch64>::new(&arena));
    assert_eq!(map.map(memory, Caching::WriteBack, || arena.frame()), Ok(Bytes::ZERO));
    assert!(map.is_mapped(memory.start()));
}
