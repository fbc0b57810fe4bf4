//! Computes which pages of the descriptor map hold the descriptors of a range.

use crate::area::Area;
use core::fmt;
use core::ops::Range;
use hotmem_addr::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem_addr::{Bytes, Pfn, PfnRange};

/// The virtual area that holds the descriptors, and the size of each descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorLayout {
    pub(super) area: Area,
    bytes: u64,
}

/// The error for descriptors of an unsupported size, which it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadDescriptorSize(pub Bytes);

impl DescriptorLayout {
    /// Lays out descriptors of `descriptor` bytes each. The descriptor of frame 0 is at the start of
    /// `area`.
    ///
    /// # Errors
    /// [`BadDescriptorSize`] if `descriptor` is 0 or more than half a frame, or if the descriptors
    /// of a pageblock do not fill whole frames.
    pub const fn new(area: Area, descriptor: Bytes) -> Result<DescriptorLayout, BadDescriptorSize> {
        let bytes = descriptor.0;
        let fills = (bytes % FRAME_SIZE * PAGEBLOCK_FRAMES as u64).is_multiple_of(FRAME_SIZE);
        if bytes == 0 || bytes > FRAME_SIZE / 2 || !fills {
            return Err(BadDescriptorSize(descriptor));
        }
        Ok(DescriptorLayout { area, bytes })
    }

    /// Returns the pages that hold the descriptors of `range`. If `range` does not consist of whole
    /// pageblocks, the first and the last page may also hold descriptors of frames outside `range`.
    #[must_use]
    pub fn pages_of(&self, range: PfnRange) -> Range<u64> {
        // The product cannot wrap: frame numbers are at most 2^40, and descriptors have at most
        // 2^11 bytes.
        let byte = |pfn: Pfn| pfn.number() * self.bytes;
        byte(range.start()) / FRAME_SIZE..byte(range.end()).div_ceil(FRAME_SIZE)
    }

    /// Returns the number of pages in the descriptor map.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.area.bytes().0 / FRAME_SIZE
    }
}

impl fmt::Display for BadDescriptorSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "descriptors of {} are not supported: empty, larger than half a frame, or not filling \
             whole frames for a pageblock",
            self.0
        )
    }
}

impl core::error::Error for BadDescriptorSize {}
