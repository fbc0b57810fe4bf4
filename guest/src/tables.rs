//! Gives `hotmem-pgtable` access to page tables in frames.

use crate::frame_words::FrameWords;
use hotmem_addr::Pfn;
use hotmem_pgtable::{Table, Tables};

/// Access to the kernel's page tables.
#[derive(Clone, Copy, Debug)]
pub struct FrameTables(FrameWords);

impl FrameTables {
    /// Makes an access to page tables through `memory`.
    ///
    /// # Safety
    /// The access is used for page tables only: for a root, for the tables that its entries point
    /// to, and for frames provided for further tables. As long as they are accessed, all these
    /// frames are mapped in `memory` and are used as page tables only.
    #[must_use]
    pub const unsafe fn new(memory: FrameWords) -> Self {
        FrameTables(memory)
    }
}

impl Tables for FrameTables {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        // SAFETY: by the contract of `new` the frame is a mapped page table. A `Table` is 512
        // atomic words, and the frame's address is aligned for them.
        Some(unsafe { &*self.0.pointer(frame).cast() })
    }
}
