//! What a kernel chooses.

use hotmem_pgtable::Flags;

/// Entries in one hypercall.
pub(crate) const BATCH: usize = 512;

/// What is the kernel's choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Tables of the lowest level are pinned one by one, as Linux does, beside the root.
    pub pins_l1: bool,
    /// How grants are told from other pages.
    pub grants: Grants,
    /// How many entries go into one hypercall: 1 to 512.
    pub batch: usize,
    /// On how many CPUs the domain runs.
    pub cpus: usize,
}

/// How grants are told from other pages. One must not be unmapped as a page is: Xen would not count
/// it as given back, and the domain that granted it never gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grants(Flags);

impl Config {
    /// Full batches for one CPU, and tables of the lowest level that are not pinned.
    #[must_use]
    pub const fn new(grants: Grants) -> Config {
        Config { pins_l1: false, grants, batch: BATCH, cpus: 1 }
    }
}

impl Grants {
    /// The kernel marks each page that is a grant with this flag, one or more of
    /// [`Flags::AVAILABLE`]; every entry is checked for it before it goes, whole tables too. `None`
    /// for a flag that is none of these, or no flag.
    #[must_use]
    pub const fn marked(flag: Flags) -> Option<Grants> {
        if flag.is_empty() || !Flags::AVAILABLE.contains(flag) { None } else { Some(Grants(flag)) }
    }

    /// The caller vouches for there being no grant in any address space that is changed: nothing is
    /// checked.
    #[must_use]
    pub const fn vouched_absent() -> Grants {
        Grants(Flags::empty())
    }

    /// The flag, unless the caller vouches.
    pub(crate) const fn flag(self) -> Flags {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_no_page_can_have_is_refused() {
        let bit = Flags::from_bits_retain(1 << 10);
        assert_eq!(Grants::marked(bit).map(Grants::flag), Some(bit));
        for flag in [Flags::empty(), Flags::DIRTY, bit | Flags::WRITABLE] {
            assert_eq!(Grants::marked(flag), None);
        }
    }
}
