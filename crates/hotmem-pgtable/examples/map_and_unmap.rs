//! Maps and unmaps pages. Shows what the kernel is told about unmapped pages, and how often TLBs are
//! flushed.

use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    AtomicU64, Batch, Entry, Flags, Flush, Level, Native, Owner, PageTables, Run, Space, Table,
    Tables, Unmap, VirtRange, slot_at,
};
use std::sync::atomic::Ordering;
use std::{array, cell::Cell};

/// Frames 0 to 7, which can be tables. A kernel accesses its frames through its direct map.
struct Ram(Vec<Table>);

impl Tables for &Ram {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.0.get(usize::try_from(frame.number()).ok()?)
    }
}

/// The kernel's record of frames and pages.
struct Kernel {
    free: Vec<Pfn>,
    dirty: u64,
}

impl Owner for Kernel {
    fn unmapped(&mut self, run: Run) {
        println!("unmapped: {:?}, dirty: {}", run.virt, run.is_dirty());
        self.dirty += if run.is_dirty() { run.virt.bytes().frames() } else { 0 };
    }

    fn free_table(&mut self, table: Pfn) {
        self.free.push(table);
    }

    fn new_table(&mut self) -> Option<Pfn> {
        self.free.pop()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ram = Ram((0..8).map(|_| array::from_fn(|_| AtomicU64::new(0))).collect());
    let mut kernel = Kernel { free: (1..8).filter_map(Pfn::new).collect(), dirty: 0 };
    let flushes = Cell::new(0);
    let mut batch = Box::new(Batch::new());
    let native = Native::new(&ram, |_: Flush| flushes.set(flushes.get() + 1));
    let space = Space::new(Pfn::ZERO, Level::L4);
    let mut tables = PageTables::new(native, space, &mut batch);

    // These 1000 pages map the frames from 4 GiB on.
    let virt = VirtRange::new(0x5000_0000_0000, Bytes(1000 << 12))?;
    let frame = Pfn::containing(4 << 30).ok_or("no such address")?;
    let entry = Entry::new(frame, Flags::PRESENT | Flags::WRITABLE);
    tables.map(Run { virt, entry, level: Level::L1 }, &mut kernel)?;
    println!("mapped: {virt:?} by {} tables", 7 - kernel.free.len());

    // If a program writes to the last page, the processor sets Accessed and Dirty.
    let slot = slot_at(tables.mmu(), space, virt.last())?;
    let ram = &ram;
    let table = ram.table(slot.at.table()).ok_or("no such table")?;
    table[slot.at.index()].fetch_or(Flags::USED.bits(), Ordering::Relaxed);

    tables.unmap_range(virt, Unmap::default(), &mut kernel)?;
    println!("flushed {} times, {} tables are free", flushes.get(), kernel.free.len());
    assert_eq!((kernel.dirty, flushes.get()), (1, 1));
    Ok(())
}

#[test]
fn the_dirty_page_is_reported_to_the_kernel() {
    main().unwrap();
}
