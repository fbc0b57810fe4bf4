//! Maps and unmaps pages. Prints the unmapped pages that the kernel receives, and the number of
//! TLB flushes.

use hotmem_pgtable::x86_64::{Batch, Entry, Flags, Run, Space};
use hotmem_pgtable::{
    AtomicU64, Bytes, Flush, Level, Native, Owner, PageTables, Pfn, Table, Tables, Unmap,
    VirtRange, X86_64, find_entry,
};
use std::sync::atomic::Ordering;
use std::{array, cell::Cell};

/// Frames 0 to 7, each of which can be a page table. The frames of a kernel are accessed through its
/// direct map instead.
struct Ram(Vec<Table>);

impl Tables for &Ram {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.0.get(usize::try_from(frame.number()).ok()?)
    }
}

/// The kernel's record of frames and pages.
struct Kernel {
    free_frames: Vec<Pfn>,
    dirty_frames: u64,
}

impl Owner<X86_64> for Kernel {
    fn unmapped(&mut self, run: Run) {
        println!("unmapped: {:?}, dirty: {}", run.virt, run.is_dirty());
        self.dirty_frames += if run.is_dirty() { run.virt.bytes().frames() } else { 0 };
    }

    fn free_table(&mut self, table: Pfn) {
        self.free_frames.push(table);
    }

    fn new_table(&mut self) -> Option<Pfn> {
        self.free_frames.pop()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ram = Ram((0..8).map(|_| array::from_fn(|_| AtomicU64::new(0))).collect());
    let mut kernel = Kernel { free_frames: (1..8).filter_map(Pfn::new).collect(), dirty_frames: 0 };
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
    println!("mapped: {virt:?} by {} tables", 7 - kernel.free_frames.len());

    // When a program writes to a page, the processor sets Accessed and Dirty in the page's entry.
    // There is no program here, so set both flags of the last page.
    let located = find_entry(tables.mmu(), space, virt.last())?;
    let ram = &ram;
    let table = ram.table(located.addr.table()).ok_or("no such table")?;
    table[located.addr.index()].fetch_or(Flags::ACCESSED_DIRTY.bits(), Ordering::Relaxed);

    tables.unmap_range(virt, Unmap::default(), &mut kernel)?;
    println!("flushed {} times, {} tables are free", flushes.get(), kernel.free_frames.len());
    assert_eq!((kernel.dirty_frames, flushes.get()), (1, 1));
    Ok(())
}

#[test]
fn the_dirty_page_is_reported_to_the_kernel() {
    main().unwrap();
}
