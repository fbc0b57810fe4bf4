//! Encodes and decodes the page table entries of the descriptor map: flags and backing frames.

use hotmem_addr::PfnRange;
use hotmem_pgtable::{ENTRIES, Entry, Format, Level};

/// The number of pages that one L1 table maps.
pub(crate) const PAGES_PER_L1_TABLE: u64 = ENTRIES as u64;
/// The number of frames that back a large page.
pub(super) const LARGE_FRAMES: u64 = PAGES_PER_L1_TABLE;

/// How a page of the map may be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The page is read and written, because its frame backs no other page.
    Write,
    /// The page is only read, because its frame also backs other pages.
    Read,
}

/// Returns the frames of an entry that maps a page, whether or not
/// [`hide`](super::DescriptorMap::hide) has made it not present.
pub(super) fn frames_of<F: Format>(entry: Entry<F>, level: Level) -> PfnRange {
    let first = entry.with_presence(true).frame(level);
    let frames = level.entry_span().frames();
    first.and_then(|first| PfnRange::with_len(first, frames)).unwrap_or(PfnRange::EMPTY)
}

pub(super) fn access_of<F: Format>(entry: Entry<F>) -> Access {
    if entry.is_writable() { Access::Write } else { Access::Read }
}
