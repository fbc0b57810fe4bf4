//! The kernel's account of pages and of the frames of tables.

use crate::run::Run;
use hotmem_addr::Pfn;

/// Whoever keeps account of pages and of the frames of tables.
pub trait Owner {
    /// These were unmapped, with their last Accessed and Dirty bits. Comes in the order of
    /// addresses. What is behind them may be used for something else when the operation has
    /// returned, not before: only then it is flushed.
    fn unmapped(&mut self, run: Run);

    /// A table is in nobody's use any more: flushed, ordinary memory, its contents undefined.
    fn free_table(&mut self, table: Pfn);

    /// A table is in nobody's use any more, but the machine failed to make it ordinary memory.
    fn stuck_table(&mut self, table: Pfn) {
        let _ = table;
    }

    /// A frame for a table that splits a large page, or `None`.
    fn new_table(&mut self) -> Option<Pfn> {
        None
    }
}
