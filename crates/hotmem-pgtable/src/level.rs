//! Defines the levels of page tables, and the kinds of their entries.

use hotmem_addr::{Bytes, Pfn};
use hotmem_invariant::OrRecordViolation;

/// The number of address bits that select an entry of one table. There are fewer under loom, whose
/// models must be small.
pub(crate) const INDEX_BITS: u32 = if cfg!(loom) { 3 } else { 9 };

/// The number of entries in a table.
pub const ENTRIES: usize = 1 << INDEX_BITS;

/// The number of entries in a cache line.
pub(crate) const LINE_ENTRIES: usize = 8;

const PAGE_SHIFT: u32 = 12;

/// The level of a table or of its entries. Entries of [`Level::L1`] map pages of 4 KiB. Levels are
/// counted from the lowest, as Intel, Xen and RISC-V count them; level 3 of Arm's manual is
/// [`Level::L1`], and its level 0 is [`Level::L4`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// Page tables.
    L1 = 1,
    /// Page directories: tables, or pages of 2 MiB.
    L2,
    /// Page-directory-pointer tables: directories, or pages of 1 GiB. The root of three levels.
    L3,
    /// The root of four levels.
    L4,
    /// The root of five levels.
    L5,
}

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The entry is not in use. Accessed and Dirty may be left over from a previous page, because
    /// Xen cannot clear them.
    Empty,
    /// The entry is not present and holds data of the kernel, for example about a page that is
    /// swapped out or being migrated.
    Software,
    /// The entry maps a page.
    Page,
    /// The entry points to a table of the level below, in this frame.
    Table(Pfn),
    /// The entry is present, but the format has no such entry on its level, for example a large page
    /// on a level that has no pages.
    Malformed,
}

impl Level {
    const ALL: [Level; 5] = [Level::L1, Level::L2, Level::L3, Level::L4, Level::L5];

    /// Returns the level of the tables that this level's entries point to, or `None` for
    /// [`Level::L1`].
    #[must_use]
    pub fn below(self) -> Option<Level> {
        Self::ALL.get((self as usize).checked_sub(2)?).copied()
    }

    /// Returns the number of bytes that one entry of this level spans: 4 KiB, 2 MiB, 1 GiB and so
    /// on.
    #[must_use]
    pub const fn entry_span(self) -> Bytes {
        Bytes(1 << (PAGE_SHIFT + INDEX_BITS * (self as u32 - 1)))
    }

    /// Returns the index of the entry for an offset into the root's span, in a table of this level.
    pub(crate) fn index(self, offset: u64) -> usize {
        // The remainder is below `ENTRIES`; the quotient may not fit in 32 bits.
        let index = offset / self.entry_span().0 % ENTRIES as u64;
        usize::try_from(index).or_record_violation().unwrap_or_default()
    }

    /// Returns the number of bytes that a table of this level spans.
    #[must_use]
    pub const fn table_span(self) -> Bytes {
        Bytes(self.entry_span().0 << INDEX_BITS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_level_spans_512_entries_of_the_level_below() {
        assert_eq!(Level::L1.below(), None);
        assert_eq!(Level::L5.below(), Some(Level::L4));
        assert_eq!(Level::L2.entry_span(), Bytes::mib(2));
        assert_eq!(Level::L4.table_span(), Bytes::gib(256 << 10));
    }
}
