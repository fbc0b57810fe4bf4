//! Access to page tables in frames.

use crate::frame_words::FrameWords;
use hotmem_addr::Pfn;
use hotmem_pgtable::{Table, Tables};

/// Access to the kernel's page tables.
#[derive(Clone, Copy, Debug)]
pub struct FrameTables(FrameWords);

impl FrameTables {
    /// Makes an access to tables through `memory`.
    ///
    /// # Safety
    /// The value is used to access tables only: a root, the tables that its entries point to, and
    /// frames provided for further tables. They are mapped in `memory`, and are used as tables
    /// only, for as long as they are accessed.
    #[must_use]
    pub const unsafe fn new(memory: FrameWords) -> Self {
        FrameTables(memory)
    }
}

impl Tables for FrameTables {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        // SAFETY: by the contract of `new` the frame is a table: atomic words at an aligned
        // address.
        Some(unsafe { &*self.0.pointer(frame).cast() })
    }
}
