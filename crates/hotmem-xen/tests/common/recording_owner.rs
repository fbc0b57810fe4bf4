//! Defines an owner that records its calls.

use super::Xen;
use hotmem_addr::Pfn;
use hotmem_pgtable::Owner;
use hotmem_pgtable::x86_64::{Entry, Format, Run};

/// An owner that records its calls.
pub(crate) struct RecordingOwner<'x> {
    pub(crate) xen: &'x Xen,
    pub(crate) runs: Vec<Run>,
    pub(crate) freed_tables: usize,
    pub(crate) stuck_tables: usize,
}

impl RecordingOwner<'_> {
    pub(crate) fn new(xen: &Xen) -> RecordingOwner<'_> {
        RecordingOwner { xen, runs: Vec::new(), freed_tables: 0, stuck_tables: 0 }
    }

    /// Returns the address and the entry of each unmapped page that the owner received.
    pub(crate) fn pages(&self) -> Vec<(u64, Entry)> {
        let pages = |run: &Run| {
            let run = *run;
            (0..run.virt.bytes().frames()).map(move |page| {
                let entry = Entry::from_bits(run.entry.bits() + (page << 12));
                (run.virt.start() + (page << 12), entry)
            })
        };
        self.runs.iter().flat_map(pages).collect()
    }
}

impl Owner<Format> for RecordingOwner<'_> {
    fn unmapped(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn free_table(&mut self, table: Pfn) {
        self.freed_tables += 1;
        self.xen.free(table);
    }

    fn stuck_table(&mut self, _: Pfn) {
        self.stuck_tables += 1;
    }
}
