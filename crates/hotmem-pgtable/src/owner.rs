//! Defines the interface to the kernel's record of pages and of the frames of tables.

use crate::format::Format;
use crate::run::Run;
use hotmem_addr::Pfn;

/// The kernel's record of pages and of the frames of tables.
pub trait Owner<F: Format> {
    /// Receives unmapped pages, with their final Accessed and Dirty bits. Runs arrive in the
    /// order of addresses. The frames may be reused only after the operation has returned, because
    /// TLBs may cache the pages until then.
    fn unmapped(&mut self, run: Run<F>);

    /// Takes back the frame of a table that is no longer used. The frame is ordinary memory with
    /// undefined contents, and no TLB or page walk uses it.
    fn free_table(&mut self, table: Pfn);

    /// Receives a table that is no longer used, but that the MMU failed to turn into ordinary
    /// memory. The table must not be used for something else.
    fn stuck_table(&mut self, table: Pfn) {
        let _ = table;
    }

    /// Returns a frame for a new table, which may have any contents. Returns `None` if the kernel
    /// has none.
    fn new_table(&mut self) -> Option<Pfn> {
        None
    }
}
