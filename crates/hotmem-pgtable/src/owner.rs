//! The interface to the kernel's record of pages and of the frames of tables.

use crate::run::Run;
use hotmem_addr::Pfn;

/// Keeps a record of pages and of the frames of tables.
pub trait Owner {
    /// Reports unmapped pages, with their final Accessed and Dirty bits, in the order of addresses.
    /// Their frames may be reused once the operation has returned, not before: only then have they
    /// been flushed.
    fn unmapped(&mut self, run: Run);

    /// Takes back the frame of a table that is no longer used. It is flushed, ordinary memory, with
    /// undefined contents.
    fn free_table(&mut self, table: Pfn);

    /// Reports a table that is no longer used but that the machine failed to turn into ordinary
    /// memory.
    fn stuck_table(&mut self, table: Pfn) {
        let _ = table;
    }

    /// Makes a frame for a table that splits a large page, or `None`.
    fn new_table(&mut self) -> Option<Pfn> {
        None
    }
}
