//! Page tables that lie in frames.

use crate::frame_words::FrameWords;
use hotmem_addr::Pfn;
use hotmem_pgtable::{Table, Tables};

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
