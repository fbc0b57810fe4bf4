//! `ibm,lmb-size`.

use super::cells::Cells;
use super::error::{Property, PropertyError, check_len};
use hotmem::Bytes;

/// A pageblock, the smallest that the engine adds: 2 MiB.
const SMALLEST: u64 = (hotmem::geometry::PAGEBLOCK_FRAMES as u64) << hotmem::geometry::FRAME_SHIFT;

/// What an LMB holds: a power of two, at least a pageblock (2 MiB).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LmbSize(Bytes);

impl LmbSize {
    /// A size that LMBs can have.
    ///
    /// # Errors
    /// [`PropertyError::LmbSize`].
    pub const fn new(size: Bytes) -> Result<LmbSize, PropertyError> {
        // Half the address space, so that twice the size is a number still.
        let fits = SMALLEST <= size.0 && size.0 < 1 << hotmem::geometry::PHYS_ADDR_BITS;
        if fits && size.0.is_power_of_two() {
            Ok(LmbSize(size))
        } else {
            Err(PropertyError::LmbSize(size.0))
        }
    }

    /// `ibm,lmb-size`: one or two cells.
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

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        self.0
    }

    /// In frames.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.0.frames()
    }
}
