//! Where descriptors lie, and which pages hold those of a range.

use crate::area::Area;
use core::fmt;
use core::ops::Range;
use hotmem_addr::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem_addr::{Bytes, Pfn, PfnRange};

/// The place of the descriptors and the size of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorLayout {
    pub(super) area: Area,
    bytes: u64,
}

/// Descriptors of this many bytes are not supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorSize(pub Bytes);

impl DescriptorLayout {
    /// Lays out descriptors of `descriptor` bytes, with that of frame 0 at the start of `area`.
    ///
    /// # Errors
    /// [`DescriptorSize`] if they have no bytes or more than half a frame, or those of a pageblock
    /// do not fill whole frames.
    pub const fn new(area: Area, descriptor: Bytes) -> Result<DescriptorLayout, DescriptorSize> {
        let bytes = descriptor.0;
        let fills = (bytes % FRAME_SIZE * PAGEBLOCK_FRAMES as u64).is_multiple_of(FRAME_SIZE);
        if bytes == 0 || bytes > FRAME_SIZE / 2 || !fills {
            return Err(DescriptorSize(descriptor));
        }
        Ok(DescriptorLayout { area, bytes })
    }

    /// Returns the pages that hold the descriptors of `range`. Unless `range` consists of whole
    /// pageblocks, the first and the last page may hold descriptors of its neighbours too.
    #[must_use]
    pub fn pages_of(&self, range: PfnRange) -> Range<u64> {
        // At most 2^40 frames with descriptors of at most 2^11 bytes: this cannot wrap.
        let byte = |pfn: Pfn| pfn.number() * self.bytes;
        byte(range.start()) / FRAME_SIZE..byte(range.end()).div_ceil(FRAME_SIZE)
    }

    /// Returns how many pages there are.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.area.bytes().0 / FRAME_SIZE
    }
}

impl fmt::Display for DescriptorSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the descriptors of a pageblock, {} each, do not fill whole frames", self.0)
    }
}

impl core::error::Error for DescriptorSize {}
