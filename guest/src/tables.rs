//! Page tables that lie in frames.

use crate::frame_words::FrameWords;
use core::sync::atomic::Ordering::Relaxed;
use hotmem::{Bytes, Pfn};
use hotmem_pgtable::{Entry, Owner, Run, Table, Tables};

/// Where the kernel reaches its page tables.
#[derive(Clone, Copy, Debug)]
pub struct FrameTables(FrameWords);

impl FrameTables {
    /// Tables in frames that are reached through `memory`.
    ///
    /// # Safety
    /// Whoever has the value asks it for nothing but tables: a root, what its entries name as
    /// tables, and frames given for more of them. They are reached through `memory`, and used as
    /// tables alone, as long as they are asked for.
    #[must_use]
    pub const unsafe fn new(memory: FrameWords) -> Self {
        FrameTables(memory)
    }
}

impl Tables for FrameTables {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        // SAFETY: it is a table, see `new`: a frame of atomic words, at an address aligned as one.
        Some(unsafe { &*self.0.pointer(frame).cast() })
    }
}

/// Frames for tables that are none, linked through their first words: addresses of frames, as
/// entries that map nothing.
#[derive(Debug)]
pub(crate) struct SpareTables {
    tables: FrameTables,
    first: Entry,
}

impl SpareTables {
    /// What one of them takes to write.
    pub(crate) const LINK_BYTES: Bytes = Bytes(size_of::<Entry>() as u64);

    pub(crate) const fn new(tables: FrameTables) -> Self {
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

/// In an address that is linked, so that frame 0 is one too: a bit of the kernel's.
const NEXT: u64 = 1 << 9;

/// Takes the frames of new tables from a function, and tells another one of what was unmapped.
pub(crate) struct Kernel<N, U> {
    pub(crate) new_table: N,
    pub(crate) unmapped: U,
}

impl<N: FnMut() -> Option<Pfn>, U: FnMut(Run)> Owner for Kernel<N, U> {
    fn unmapped(&mut self, run: Run) {
        (self.unmapped)(run);
    }

    /// All tables are kept.
    fn free_table(&mut self, _: Pfn) {}

    fn new_table(&mut self) -> Option<Pfn> {
        (self.new_table)()
    }
}
