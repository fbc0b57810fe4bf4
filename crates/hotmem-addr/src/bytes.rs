//! Defines the type of sizes in bytes.

use crate::geometry::FRAME_SHIFT;
use core::fmt;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Returns `n` MiB, or the largest possible number of bytes if `n` MiB exceed it.
    #[must_use]
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 20))
    }

    /// Returns `n` GiB, or the largest possible number of bytes if `n` GiB exceed it.
    #[must_use]
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 30))
    }

    /// Returns the number of whole frames, rounded down.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.0 >> FRAME_SHIFT
    }
}

impl core::ops::Add for Bytes {
    type Output = Bytes;
    /// Adds, and returns the largest possible number if the sum exceeds it.
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl core::ops::Sub for Bytes {
    type Output = Bytes;
    /// Subtracts, and returns 0 if `other` is larger.
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints the value in the largest binary unit that divides it: `64GiB`, `2MiB`, `4097B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in units {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

#[cfg(all(test, not(any(loom, hotmem_geometry = "small"))))]
mod tests {
    use super::*;

    #[test]
    fn a_size_prints_in_the_largest_unit_that_divides_the_size() {
        extern crate std;
        use std::string::ToString;
        assert_eq!(Bytes::gib(64).to_string(), "64GiB");
        assert_eq!(Bytes(4097).to_string(), "4097B");
        assert_eq!(Bytes::mib(1536).to_string(), "1536MiB");
    }

    #[test]
    fn constructors_saturate() {
        for unit in [Bytes::mib, Bytes::gib] {
            assert_eq!(unit(u64::MAX), Bytes(u64::MAX));
        }
    }
}
