//! Supplies of frames for page tables.

use core::sync::atomic::Ordering::Relaxed;
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{Entry, Owner, Run, Tables};

/// A list of frames that are reserved for tables, linked through their first words. A link is an
/// address in the form of an entry that is not present.
#[derive(Debug)]
pub(crate) struct SpareTables<T> {
    tables: T,
    first: Entry,
}

/// The number of bytes written to link one frame.
pub(crate) const LINK_BYTES: Bytes = Bytes(size_of::<Entry>() as u64);

impl<T: Tables> SpareTables<T> {
    pub(crate) const fn new(tables: T) -> Self {
        SpareTables { tables, first: Entry::EMPTY }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub(crate) fn push(&mut self, frame: Pfn) {
        if let Some(table) = self.tables.table(frame) {
            table[0].store(self.first.bits(), Relaxed);
            self.first = Entry::from_bits(frame.phys_addr() | NEXT);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Pfn> {
        let frame = Pfn::containing(self.first.bits()).filter(|_| !self.first.is_empty())?;
        let next = self.tables.table(frame)?[0].load(Relaxed);
        self.first = Entry::from_bits(next);
        Some(frame)
    }
}

/// A bit for software that is set in every link, so that a link to frame 0 is not empty.
const NEXT: u64 = 1 << 9;

/// An owner that takes frames for new tables from one function and passes unmapped runs to another.
pub(crate) struct Kernel<N, U> {
    pub(crate) new_table: N,
    pub(crate) unmapped: U,
}

impl<N: FnMut() -> Option<Pfn>, U: FnMut(Run)> Owner for Kernel<N, U> {
    fn unmapped(&mut self, run: Run) {
        (self.unmapped)(run);
    }

    /// Does nothing: all tables are kept.
    fn free_table(&mut self, _: Pfn) {}

    fn new_table(&mut self) -> Option<Pfn> {
        (self.new_table)()
    }
}
