//! Unmaps 512 pages of a PV guest and counts the hypercalls.
//!
//! A few lines simulate Xen. Unlike the real Xen, they do not check requests.

use hotmem_pgtable::x86_64::{Batch, Entry, Flags, Format, Run, Space};
use hotmem_pgtable::{
    AtomicU64, EntryAddr, Level, Owner, PageTables, Table, Tables, Unmap, VirtRange,
};
use hotmem_xen::{
    BatchRefused, Bytes, Config, DomId, GrantDetection, HypercallBuffer, Hypervisor, MachineTables,
    MmuExtOp, MmuUpdate, Pfn, XenPv,
};
use std::sync::atomic::Ordering::Relaxed;
use std::{array, cell::Cell};

/// The guest's tables in frames 0 to 3, one of each level.
struct Ram {
    tables: [Table; 4],
    hypercalls: Cell<u64>,
}

impl Tables for &Ram {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.get(usize::try_from(frame.number()).ok()?)
    }
}

impl MachineTables for &Ram {
    fn direct_map_entry(&self, _: Pfn) -> Option<(EntryAddr, Entry)> {
        // This example frees no table, so no table has to become writable.
        None
    }

    fn grace_period(&self) {}
}

impl Hypervisor for &Ram {
    fn mmu_update(&mut self, updates: &[MmuUpdate], _: DomId) -> Result<(), BatchRefused> {
        self.hypercalls.set(self.hypercalls.get() + 1);
        for update in updates {
            let (entry, _) = update.target();
            let addr = EntryAddr::from_phys_addr(entry);
            let table = self.table(addr.table()).expect("the entry lies in a table of the guest");
            // `PreserveAd` with value 0 clears everything but Accessed and Dirty.
            table[addr.index()].fetch_and(Flags::ACCESSED_DIRTY.bits(), Relaxed);
        }
        Ok(())
    }

    fn mmuext_op(&mut self, _: &[MmuExtOp]) -> Result<(), BatchRefused> {
        self.hypercalls.set(self.hypercalls.get() + 1);
        Ok(())
    }

    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>) {
        (self.mmuext_op(ops), self.mmu_update(updates, DomId::SELF))
    }
}

/// An owner that counts the pages that were written.
struct WrittenPages(u64);

impl Owner<Format> for WrittenPages {
    fn unmapped(&mut self, run: Run) {
        self.0 += if run.is_dirty() { run.virt.bytes().frames() } else { 0 };
    }

    fn free_table(&mut self, _: Pfn) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let table = |_| array::from_fn(|_| AtomicU64::new(0));
    let ram = Ram { tables: array::from_fn(table), hypercalls: Cell::new(0) };
    let frame = |number| Pfn::new(number).expect("the number is below the limit");
    for number in 0..3 {
        let link = Entry::link(frame(number as u64 + 1));
        ram.tables[number][0].store(link.bits(), Relaxed);
    }
    // The L1 table maps 512 pages. Every fourth page was written.
    for (page, entry) in ram.tables[3].iter().enumerate() {
        let dirty = if page % 4 == 0 { Flags::ACCESSED_DIRTY } else { Flags::ACCESSED };
        let mapped = Entry::new(frame(0x1000 + page as u64), Flags::PRESENT | dirty);
        entry.store(mapped.bits(), Relaxed);
    }

    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    let config = Config { batch: 32, ..Config::new(GrantDetection::assume_absent()) };
    let xen = XenPv::new(&ram, &ram, config, &mut buffer);
    let mut tables = PageTables::new(xen, Space::new(frame(0), Level::L4), &mut batch);
    let mut written = WrittenPages(0);
    let keep = Unmap { tables: hotmem_pgtable::CoveredTables::Keep, ..Unmap::default() };
    tables.unmap_range(VirtRange::new(0, Bytes::mib(2))?, keep, &mut written)?;
    println!("{} of 512 pages were written; {} hypercalls", written.0, ram.hypercalls.get());
    assert_eq!((written.0, ram.hypercalls.get()), (128, 512 / 32 + 1));
    Ok(())
}

#[test]
fn a_hypercall_clears_many_entries() {
    main().unwrap();
}
