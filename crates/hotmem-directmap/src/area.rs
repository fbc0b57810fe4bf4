//! Checks the bounds of an area of the virtual address space. Each area belongs to one map.

use core::fmt;
use hotmem_addr::Bytes;
use hotmem_pgtable::Level;

/// An area of a four-level address space. Only the map that owns the area changes the root entries
/// that cover the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    base: u64,
    bytes: u64,
}

/// The reason why addresses cannot be an [`Area`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AreaError {
    /// The base is not a multiple of 512 GiB, the span of a root entry.
    Unaligned {
        /// The base.
        base: u64,
    },
    /// The size is 0, or not a multiple of 2 MiB.
    Size {
        /// The size.
        bytes: Bytes,
    },
    /// Some of these addresses are not canonical in a four-level address space.
    NotCanonical {
        /// The base.
        base: u64,
        /// The size.
        bytes: Bytes,
    },
}

/// The size of each half of the address space, in bytes.
const HALF_BYTES: u64 = Level::L4.table_span().0 / 2;

impl Area {
    /// Returns the area of `bytes` from `base` on.
    ///
    /// # Errors
    /// [`AreaError`]
    pub const fn new(base: u64, bytes: Bytes) -> Result<Area, AreaError> {
        if !base.is_multiple_of(Level::L4.entry_span().0) {
            return Err(AreaError::Unaligned { base });
        }
        if bytes.0 == 0 || !bytes.0.is_multiple_of(Level::L2.entry_span().0) {
            return Err(AreaError::Size { bytes });
        }
        let Some(last) = base.checked_add(bytes.0 - 1) else {
            return Err(AreaError::NotCanonical { base, bytes });
        };
        if last >= HALF_BYTES && base < HALF_BYTES.wrapping_neg() {
            return Err(AreaError::NotCanonical { base, bytes });
        }
        Ok(Area { base, bytes: bytes.0 })
    }

    /// Returns the first address.
    #[must_use]
    pub const fn base(self) -> u64 {
        self.base
    }

    /// Returns the size.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Returns the address at `offset` from the base, or `None` beyond the end of the area.
    pub(crate) const fn address(self, offset: u64) -> Option<u64> {
        if offset < self.bytes { Some(self.base + offset) } else { None }
    }
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AreaError::Unaligned { base } => {
                write!(f, "the base of the area, {base:#x}, is not a multiple of 512 GiB")
            }
            AreaError::Size { bytes } => {
                write!(f, "the size of the area, {bytes}, is 0 or not a multiple of 2 MiB")
            }
            AreaError::NotCanonical { base, bytes } => {
                write!(f, "some addresses of the {bytes} from {base:#x} are not canonical")
            }
        }
    }
}

impl core::error::Error for AreaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_that_are_unaligned_empty_or_not_canonical_are_refused() {
        let upper = 0xffff_8000_0000_0000;
        let all = Bytes::gib(128 << 10);
        for base in [0, upper] {
            let area = Area::new(base, all).unwrap();
            assert_eq!((area.base(), area.bytes()), (base, all));
            assert_eq!(area.address(all.0 - 1), Some(base + (all.0 - 1)));
            assert_eq!(area.address(all.0), None);
            let bytes = all + Bytes::mib(2);
            assert_eq!(Area::new(base, bytes), Err(AreaError::NotCanonical { base, bytes }));
        }
        for base in [1 << 38, upper + (1 << 30)] {
            assert_eq!(Area::new(base, all), Err(AreaError::Unaligned { base }));
        }
        for bytes in [Bytes::ZERO, Bytes(4 << 10), Bytes(u64::MAX)] {
            assert_eq!(Area::new(upper, bytes), Err(AreaError::Size { bytes }));
        }
        for base in [1 << 47, upper - (1 << 39)] {
            let bytes = Bytes::mib(2);
            assert_eq!(Area::new(base, bytes), Err(AreaError::NotCanonical { base, bytes }));
        }
    }
}
