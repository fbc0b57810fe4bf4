//! Supplies frames for page tables: a list of reserved frames, and an adapter for the kernel's
//! functions.

use core::sync::atomic::Ordering::Relaxed;
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{Format, Owner, Run, Tables};

/// A list of frames that are reserved for tables. The first word of each frame is the link to the
/// next frame: its address, with bit 0 clear, as in an entry that is not present.
#[derive(Debug)]
pub(crate) struct SpareTables<T> {
    tables: T,
    first_link: u64,
}

/// The number of bytes written to link one frame.
pub(crate) const LINK_BYTES: Bytes = Bytes(size_of::<u64>() as u64);

impl<T: Tables> SpareTables<T> {
    pub(crate) const fn new(tables: T) -> Self {
        SpareTables { tables, first_link: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first_link == 0
    }

    pub(crate) fn push(&mut self, frame: Pfn) {
        if let Some(table) = self.tables.table(frame) {
            table[0].store(self.first_link, Relaxed);
            self.first_link = frame.phys_addr() | LINK_MARK;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Pfn> {
        let frame = Pfn::containing(self.first_link).filter(|_| self.first_link != 0)?;
        self.first_link = self.tables.table(frame)?[0].load(Relaxed);
        Some(frame)
    }
}

/// Is set in every link, so that a link to frame 0 is not 0.
const LINK_MARK: u64 = 1 << 9;

/// An owner that allocates tables by `new_table` and passes unmapped runs to `unmapped`.
pub(crate) struct CallbackOwner<N, U> {
    pub(crate) new_table: N,
    pub(crate) unmapped: U,
}

impl<F: Format, N: FnMut() -> Option<Pfn>, U: FnMut(Run<F>)> Owner<F> for CallbackOwner<N, U> {
    fn unmapped(&mut self, run: Run<F>) {
        (self.unmapped)(run);
    }

    /// Does nothing, because the callers keep all tables.
    fn free_table(&mut self, _: Pfn) {}

    fn new_table(&mut self) -> Option<Pfn> {
        (self.new_table)()
    }
}
