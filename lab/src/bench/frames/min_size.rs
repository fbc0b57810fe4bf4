//! Computes how large a machine a case needs.

use super::access_pattern::AccessPattern;
use super::case::Case;
use super::{mixed_orders, traffic};
use hotmem::Bytes;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES};

const PAGEBLOCK: u64 = PAGEBLOCK_FRAMES as u64;

impl Case {
    /// Returns the size of the smallest machine on which the allocations of this case fit.
    pub(super) fn min_size(&self) -> Bytes {
        let pageblocks = match self.access {
            AccessPattern::Mixed => mixed_orders::frames_held().div_ceil(PAGEBLOCK) * 2,
            _ => traffic::free_pageblocks(self).unwrap_or(1),
        };
        let section = SECTION_FRAMES as u64;
        Bytes((pageblocks * PAGEBLOCK).next_multiple_of(section) * FRAME_SIZE)
    }
}
