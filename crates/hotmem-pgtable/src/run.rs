//! Pages alike, one after another.

use crate::entry::{Entry, Flags, Level};
use crate::range::VirtRange;
use hotmem_addr::PfnRange;

/// Pages that were unmapped: one after another in addresses and frames, and alike in flags,
/// Accessed and Dirty included. What the kernel had noted in entries that are not present comes
/// one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The addresses that mapped them.
    pub virt: VirtRange,
    /// The first one's entry, with its final bits.
    pub entry: Entry,
    /// The level of their tables.
    pub level: Level,
}

impl Run {
    /// The frames, if there are any behind it.
    #[must_use]
    pub fn frames(&self) -> Option<PfnRange> {
        PfnRange::with_len(self.entry.frame(self.level)?, self.virt.bytes().frames())
    }

    /// Whether any of it may have been written since Dirty was last cleared.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.entry.is_present() && self.entry.flags().contains(Flags::DIRTY)
    }

    /// Whether any of it may have been used since Accessed was last cleared.
    #[must_use]
    pub fn is_accessed(&self) -> bool {
        self.entry.is_present() && self.entry.flags().contains(Flags::ACCESSED)
    }
}
