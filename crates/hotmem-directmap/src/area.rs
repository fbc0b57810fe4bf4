//! Parts of the address space that belong to one map.

use core::fmt;
use hotmem_addr::Bytes;
use hotmem_pgtable::Level;

/// A part of a four-level address space, whose entries of the root nobody else changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    base: u64,
    bytes: u64,
}

/// Why addresses cannot be an [`Area`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AreaError {
    /// The base is not where an entry of the root begins: a multiple of 512 GiB.
    Unaligned {
        /// The base.
        base: u64,
    },
    /// The size is no multiple of 2 MiB, or 0.
    Size {
        /// The size.
        bytes: Bytes,
    },
    /// Four levels of tables do not reach all of these addresses.
    NotCanonical {
        /// The base.
        base: u64,
        /// The size.
        bytes: Bytes,
    },
}

/// Bytes of each half of the address space.
const HALF: u64 = Level::L4.table_bytes().0 / 2;

impl Area {
    /// `bytes` bytes from `base` on.
    ///
    /// # Errors
    /// [`AreaError`]
    pub const fn new(base: u64, bytes: Bytes) -> Result<Area, AreaError> {
        if !base.is_multiple_of(Level::L4.entry_bytes().0) {
            return Err(AreaError::Unaligned { base });
        }
        if bytes.0 == 0 || !bytes.0.is_multiple_of(Level::L2.entry_bytes().0) {
            return Err(AreaError::Size { bytes });
        }
        let Some(last) = base.checked_add(bytes.0 - 1) else {
            return Err(AreaError::NotCanonical { base, bytes });
        };
        if last >= HALF && base < HALF.wrapping_neg() {
            return Err(AreaError::NotCanonical { base, bytes });
        }
        Ok(Area { base, bytes: bytes.0 })
    }

    /// The first address.
    #[must_use]
    pub const fn base(self) -> u64 {
        self.base
    }

    /// The size.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.bytes)
    }

    /// The address at an offset; `None` beyond the end.
    pub(crate) const fn address(self, offset: u64) -> Option<u64> {
        if offset < self.bytes { Some(self.base + offset) } else { None }
    }
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AreaError::Unaligned { base } => write!(f, "{base:#x} is no multiple of 512 GiB"),
            AreaError::Size { bytes } => write!(f, "{bytes} are no whole pages of 2 MiB"),
            AreaError::NotCanonical { base, bytes } => {
                write!(f, "{bytes} at {base:#x} are not all canonical with four levels")
            }
        }
    }
}

impl core::error::Error for AreaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_aligned_whole_and_canonical() {
        let upper = 0xffff_8000_0000_0000;
        let all = Bytes::tib(128);
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
        for bytes in [Bytes::ZERO, Bytes::kib(4), Bytes(u64::MAX)] {
            assert_eq!(Area::new(upper, bytes), Err(AreaError::Size { bytes }));
        }
        for base in [1 << 47, upper - (1 << 39)] {
            let bytes = Bytes::mib(2);
            assert_eq!(Area::new(base, bytes), Err(AreaError::NotCanonical { base, bytes }));
        }
    }
}
