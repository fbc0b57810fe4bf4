//! Checks the bounds of an area of the virtual address space. Each area belongs to one map.

use core::fmt;
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{Format, Level, Space};

/// An area of the address space. Only the map that owns the area changes the root entries that cover
/// the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    base: u64,
    bytes: u64,
    root_level: Level,
}

/// The reason why addresses cannot be an [`Area`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AreaError {
    /// The base is not a multiple of the span of a root entry.
    Unaligned {
        /// The base.
        base: u64,
        /// The span: 512 GiB with four levels.
        root_entry: Bytes,
    },
    /// The size is 0, or not a multiple of 2 MiB.
    Size {
        /// The size.
        bytes: Bytes,
    },
    /// Some of these addresses are not canonical with this number of levels, or, on aarch64, lie in
    /// the half of a root that an area [cannot](Area::new) use.
    NotCanonical {
        /// The base.
        base: u64,
        /// The size.
        bytes: Bytes,
    },
}

impl Area {
    /// Returns the area of `bytes` from `base` on, in an address space of four levels: one of x86-64,
    /// of aarch64 with 48-bit addresses, or of riscv64 with Sv48. The area lies in the lowest or the
    /// highest 128 TiB of all addresses. So on aarch64, where each root translates 256 TiB, it cannot
    /// lie in the other half of a root.
    ///
    /// # Errors
    /// [`AreaError`]
    pub const fn new(base: u64, bytes: Bytes) -> Result<Area, AreaError> {
        Area::of_levels(base, bytes, Level::L4)
    }

    /// Returns the area of `bytes` from `base` on, in an address space of three levels: one of
    /// riscv64 with Sv39, or of aarch64 with 39-bit addresses. The area lies in the lowest or the
    /// highest 256 GiB of all addresses: see [`new`](Self::new).
    ///
    /// # Errors
    /// [`AreaError`]
    pub const fn of_three_levels(base: u64, bytes: Bytes) -> Result<Area, AreaError> {
        Area::of_levels(base, bytes, Level::L3)
    }

    /// The two highest bits of an address with this number of levels must be equal, also where the
    /// format has a root for each half.
    const fn of_levels(base: u64, bytes: Bytes, root_level: Level) -> Result<Area, AreaError> {
        let root_entry = root_level.entry_span();
        if !base.is_multiple_of(root_entry.0) {
            return Err(AreaError::Unaligned { base, root_entry });
        }
        let half_bytes = root_level.table_span().0 / 2;
        if bytes.0 == 0 || !bytes.0.is_multiple_of(Level::L2.entry_span().0) {
            return Err(AreaError::Size { bytes });
        }
        let Some(last) = base.checked_add(bytes.0 - 1) else {
            return Err(AreaError::NotCanonical { base, bytes });
        };
        if last >= half_bytes && base < half_bytes.wrapping_neg() {
            return Err(AreaError::NotCanonical { base, bytes });
        }
        Ok(Area { base, bytes: bytes.0, root_level })
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

    /// Returns the address space of this root, in which the area lies.
    pub(crate) fn space<F: Format>(self, root: Pfn) -> Space<F> {
        Space::new(root, self.root_level).in_half_of(self.base)
    }

    /// Returns the address at `offset` from the base, or `None` beyond the end of the area.
    pub(crate) const fn address(self, offset: u64) -> Option<u64> {
        if offset < self.bytes { Some(self.base + offset) } else { None }
    }
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AreaError::Unaligned { base, root_entry } => {
                write!(f, "the base of the area, {base:#x}, is not a multiple of {root_entry}")
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
    fn an_area_of_three_levels_lies_in_the_lowest_or_the_highest_256_gib() {
        let half = Bytes::gib(256);
        for base in [0, half.0.wrapping_neg(), Bytes::gib(1).0.wrapping_neg()] {
            let bytes = if base == 0 { half } else { Bytes(base.wrapping_neg()) };
            assert!(Area::of_three_levels(base, bytes).is_ok(), "{base:#x}");
        }
        let base = half.0.wrapping_neg() - Bytes::gib(1).0;
        let bytes = Bytes::gib(1);
        let refused = Area::of_three_levels(base, bytes);
        assert_eq!(refused, Err(AreaError::NotCanonical { base, bytes }));
        let base = Bytes::mib(512).0.wrapping_neg();
        let refused = Area::of_three_levels(base, Bytes::mib(2));
        assert_eq!(refused, Err(AreaError::Unaligned { base, root_entry: Bytes::gib(1) }));
    }

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
            assert_eq!(
                Area::new(base, all),
                Err(AreaError::Unaligned { base, root_entry: Bytes::gib(512) })
            );
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
