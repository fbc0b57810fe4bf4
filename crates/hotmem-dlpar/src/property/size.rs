//! Reads the LMB size, the property `ibm,lmb-size`.

use super::cells::Cells;
use super::error::{Property, PropertyError, check_len};
use hotmem::Bytes;

/// A pageblock (2 MiB), the smallest unit that the engine adds.
const MIN_BYTES: u64 = (hotmem::geometry::PAGEBLOCK_FRAMES as u64) << hotmem::geometry::FRAME_SHIFT;

/// The size of an LMB: a power of two, at least a pageblock (2 MiB).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LmbSize(Bytes);

impl LmbSize {
    /// Makes an LMB size.
    ///
    /// # Errors
    /// [`PropertyError::LmbSize`].
    pub const fn new(size: Bytes) -> Result<LmbSize, PropertyError> {
        // The size must be less than the address space, so that twice the size does not overflow.
        let fits = MIN_BYTES <= size.0 && size.0 < 1 << hotmem::geometry::PHYS_ADDR_BITS;
        if fits && size.0.is_power_of_two() {
            Ok(LmbSize(size))
        } else {
            Err(PropertyError::LmbSize(size.0))
        }
    }

    /// Reads `ibm,lmb-size`, which has one or two cells.
    ///
    /// # Errors
    /// [`PropertyError`].
    pub fn parse(property: &[u8]) -> Result<LmbSize, PropertyError> {
        let size = match property.len() {
            4 => u64::from(Cells(property).next()),
            len => {
                check_len(Property::LmbSize, 8, len)?;
                Cells(property).next_pair()
            }
        };
        LmbSize::new(Bytes(size))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        self.0
    }

    /// Returns the size in frames.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.0.frames()
    }
}
