//! Runs of pages with equal flags.

use crate::entry::{Entry, Flags, Level};
use crate::range::VirtRange;
use hotmem_addr::PfnRange;

/// A run of unmapped pages: consecutive in addresses and in frames, and with equal flags, Accessed
/// and Dirty included. An entry that is not present and holds data of the kernel is a run of its
/// own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The addresses that mapped them.
    pub virt: VirtRange,
    /// The first page's entry, with its final Accessed and Dirty bits.
    pub entry: Entry,
    /// The level of their tables.
    pub level: Level,
}

impl Run {
    /// Returns the frames, if the pages are present.
    #[must_use]
    pub fn frames(&self) -> Option<PfnRange> {
        PfnRange::with_len(self.entry.frame(self.level)?, self.virt.bytes().frames())
    }

    /// Returns whether any of it may have been written since Dirty was last cleared.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.entry.is_present() && self.entry.flags().contains(Flags::DIRTY)
    }

    /// Returns whether any of it may have been used since Accessed was last cleared.
    #[must_use]
    pub fn is_accessed(&self) -> bool {
        self.entry.is_present() && self.entry.flags().contains(Flags::ACCESSED)
    }
}
