//! The configuration of [`XenPv`](crate::XenPv).

use hotmem_pgtable::x86_64::Flags;

/// The maximal number of entries in one hypercall.
pub(crate) const MAX_BATCH: usize = 512;

/// The kernel's options for [`XenPv`](crate::XenPv).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Whether the kernel pins each L1 table, as Linux does, besides the root.
    pub pins_l1: bool,
    /// The way in which mapped grants are recognised.
    pub grant_detection: GrantDetection,
    /// The number of entries in one hypercall: 1 to 512.
    pub batch: usize,
    /// The number of CPUs of the domain.
    pub cpus: usize,
}

/// The way in which mapped grants are recognised. A grant must not be unmapped like a page, because
/// Xen would not count it as returned, and the granting domain would never get its frame back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantDetection(Flags);

impl Config {
    /// Makes the configuration with full batches, one CPU, and L1 tables that are not pinned.
    #[must_use]
    pub const fn new(grant_detection: GrantDetection) -> Config {
        Config { pins_l1: false, grant_detection, batch: MAX_BATCH, cpus: 1 }
    }
}

impl GrantDetection {
    /// Recognises grants by a flag that the kernel sets in each of their entries: one or more bits
    /// of [`Flags::AVAILABLE`]. Every entry is checked before it is cleared, also in whole tables.
    /// Returns `None` for other flags or no flag.
    #[must_use]
    pub const fn by_flag(flag: Flags) -> Option<GrantDetection> {
        if flag.is_empty() || !Flags::AVAILABLE.contains(flag) {
            None
        } else {
            Some(GrantDetection(flag))
        }
    }

    /// Checks no entry. The kernel guarantees that no address space that it changes maps a grant.
    #[must_use]
    pub const fn assume_absent() -> GrantDetection {
        GrantDetection(Flags::empty())
    }

    /// Returns the flag. It is empty if no entry is checked.
    pub(crate) const fn flag(self) -> Flags {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_outside_the_available_bits_is_refused() {
        let bit = Flags::from_bits_retain(1 << 10);
        assert_eq!(GrantDetection::by_flag(bit).map(GrantDetection::flag), Some(bit));
        for flag in [Flags::empty(), Flags::DIRTY, bit | Flags::WRITABLE] {
            assert_eq!(GrantDetection::by_flag(flag), None);
        }
    }
}
