//! Unmaps a part of a 1 GiB page of a direct map. Splitting the page allocates no frame.

use hotmem_directmap::{Area, Bytes, Caching, DirectMap, Pfn, PfnRange, tables_needed};
use hotmem_pgtable::{AtomicU64, Flush, Table, Tables};
use std::{array, cell::Cell};

/// Frames 0 to 7, which can be tables.
struct Ram(Vec<Table>);

impl Tables for &Ram {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.0.get(usize::try_from(frame.number()).ok()?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ram = Ram((0..8).map(|_| array::from_fn(|_| AtomicU64::new(0))).collect());
    let mut free = (1..8).filter_map(Pfn::new);
    let flushes = Cell::new(0);

    let area = Area::new(0xffff_8000_0000_0000, Bytes::gib(64 << 10))?;
    let flush = |_: Flush| flushes.set(flushes.get() + 1);
    let mut map = DirectMap::new(&ram, Pfn::ZERO, area, true, flush);
    let memory = PfnRange::from_bytes(4 << 30, Bytes::gib(2))?;
    println!("mapping {memory} needs {} frames", tables_needed(memory));
    map.map(memory, Caching::WriteBack, || free.next())?;
    let free_frames = free.clone().count();

    // Unmapping 2 MiB in the middle splits the 1 GiB page. Its table was taken by `map` in advance.
    let (below, rest) = memory.split_at(memory.start().checked_add(512 * 100).ok_or("too high")?);
    let (unmapped, above) = rest.split_at(rest.start().checked_add(512).ok_or("too high")?);
    map.unmap(unmapped)?;
    println!("unmapped {unmapped}, flushed {} times", flushes.get());
    assert!(map.is_mapped(below.start()) && map.is_mapped(above.start()));
    assert!(!map.is_mapped(unmapped.start()));
    assert_eq!(free.count(), free_frames, "unmapping takes a frame");

    // After all memory is unmapped, `release_tables` frees the tables, which map nothing.
    map.unmap(memory)?;
    let mut returned = 0;
    map.release_tables(memory, |_| returned += 1);
    println!("unmapped {memory}: {returned} frames are free again");
    Ok(())
}

#[test]
fn a_part_of_a_large_page_is_unmapped() {
    main().unwrap();
}
