//! Defines sizes, and makes frames and ranges from numbers.

use hotmem::{Pfn, PfnRange, geometry};

/// The number of frames in a pageblock.
pub const PAGEBLOCK: u64 = geometry::PAGEBLOCK_FRAMES as u64;
/// The number of frames in a section.
pub const SECTION: u64 = geometry::SECTION_FRAMES as u64;
/// The number of frames that physical addresses can name.
pub const PFN_LIMIT: u64 = Pfn::LIMIT.number();
/// The number of a frame far above the boot memory of the tests.
pub const DISTANT_PFN: u64 = PFN_LIMIT / 4;
/// The number of frames in one word of a frame bitmap.
pub const BITMAP_WORD_FRAMES: u64 = if cfg!(hotmem_geometry = "small") { 8 } else { 32 };
/// The number of frames of the longest run that need not begin at a pageblock.
pub const LONGEST_RUN: u64 = if cfg!(hotmem_geometry = "small") { 12 } else { 256 };

/// Returns `frames` frames from frame number `start`.
///
/// # Panics
/// Panics if the range ends above the limit of physical addresses.
#[must_use]
pub fn range(start: u64, frames: u64) -> PfnRange {
    PfnRange::with_len(pfn(start), frames).expect("within the address limit")
}

/// Returns the frame with this number.
///
/// # Panics
/// Panics if the number is beyond the limit of physical addresses.
#[must_use]
pub fn pfn(number: u64) -> Pfn {
    Pfn::new(number).expect("within the address limit")
}

/// Returns the numbers of a range's frames.
#[must_use]
pub fn numbers(range: PfnRange) -> std::ops::Range<u64> {
    range.start().number()..range.end().number()
}
