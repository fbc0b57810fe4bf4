//! Encodes and decodes the page table entries of the descriptor map: flags and backing frames.

use hotmem_addr::PfnRange;
use hotmem_pgtable::{ENTRIES, Entry, Flags, Level};

/// The number of pages that one L1 table maps.
pub(crate) const PAGES_PER_L1_TABLE: u64 = ENTRIES as u64;
/// The number of frames that back a large page.
pub(super) const LARGE_FRAMES: u64 = PAGES_PER_L1_TABLE;

/// Flags of a page whose frame also backs other pages. Accessed and Dirty are set from the start,
/// so that the processor never has to set them.
pub(super) const SHARED: Flags = Flags::PRESENT.union(Flags::ACCESSED_DIRTY);
/// Flags of a page whose frame backs no other page.
pub(super) const UNSHARED: Flags = SHARED.union(Flags::WRITABLE);

/// How a page of the map may be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The page is read and written, because its frame backs no other page.
    Write,
    /// The page is only read, because its frame also backs other pages.
    Read,
}

pub(super) fn without(entry: Entry, flags: Flags) -> Entry {
    Entry::from_bits(entry.bits() & !flags.bits())
}

/// Returns the frames of an entry that maps a page, whether or not
/// [`hide`](super::DescriptorMap::hide) has cleared its Present flag.
pub(super) fn frames_of(entry: Entry, level: Level) -> PfnRange {
    let first = entry.with(Flags::PRESENT).frame(level);
    let frames = level.entry_span().frames();
    first.and_then(|first| PfnRange::with_len(first, frames)).unwrap_or(PfnRange::EMPTY)
}

pub(super) fn access_of(entry: Entry) -> Access {
    if entry.flags().contains(Flags::WRITABLE) { Access::Write } else { Access::Read }
}

/// Returns the index of a page's entry in its L1 table.
pub(super) fn l1_index(page: u64) -> usize {
    usize::try_from(page % PAGES_PER_L1_TABLE).unwrap_or(0)
}
