//! Defines runs of pages that are consecutive and have equal flags.

use crate::entry::Entry;
use crate::format::Format;
use crate::level::Level;
use crate::range::VirtRange;
use hotmem_addr::PfnRange;

/// A run of pages of one size. The pages are consecutive in addresses and in frames, and have equal
/// flags, Accessed and Dirty included. An entry that is not present and holds data of the kernel is
/// a run by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run<F: Format> {
    /// The addresses at which the pages are or were mapped.
    pub virt: VirtRange,
    /// The entry of the first page. If the pages were unmapped, it has the final Accessed and Dirty
    /// bits.
    pub entry: Entry<F>,
    /// The level of the tables that contain the entries.
    pub level: Level,
}

impl<F: Format> Run<F> {
    /// Returns the frames of the pages, if the pages are present.
    #[must_use]
    pub fn frames(&self) -> Option<PfnRange> {
        PfnRange::with_len(self.entry.frame(self.level)?, self.virt.bytes().frames())
    }

    /// Returns whether any page of the run may have been written since Dirty was last cleared.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.entry.is_dirty()
    }

    /// Returns whether any page of the run may have been accessed since Accessed was last cleared.
    #[must_use]
    pub fn is_accessed(&self) -> bool {
        self.entry.is_accessed()
    }
}
