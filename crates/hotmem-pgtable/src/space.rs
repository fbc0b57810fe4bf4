//! Defines address spaces, and which entries of their two roots change together.

use crate::entry::EntryAddr;
use crate::format::Format;
use crate::level::{ENTRIES, Level};
use hotmem_addr::Pfn;

/// The root of an address space's page tables, and the number of their levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space<F: Format> {
    /// The frame of the root.
    pub root: Pfn,
    /// The frame of the user's root, if user mode has a separate one; the kernel then runs on
    /// `root`. 64-bit Xen PV guests and kernels with page-table isolation have a user's root. The
    /// entries of its lower half equal those of `root`, and so point to the same tables. In a format
    /// with a root for each half, all entries do.
    pub user_root: Option<Pfn>,
    /// The root's level, for example [`Level::L4`] or [`Level::L5`] on x86-64.
    pub root_level: Level,
    /// The addresses that the root translates.
    pub half: F::Half,
}

impl<F: Format> Space<F> {
    /// Creates an address space with one root, of this level. If a root translates one half of the
    /// addresses in this format, it is the lower half.
    #[must_use]
    pub const fn new(root: Pfn, root_level: Level) -> Space<F> {
        Space { root, user_root: None, root_level, half: F::LOWER_HALF }
    }

    /// Returns the same address space with a root that translates the half with this address.
    #[must_use]
    pub fn in_half_of(self, address: u64) -> Space<F> {
        Space { half: F::half_of(address), ..self }
    }

    /// Returns the same address space with `root` as its user's root.
    #[must_use]
    pub const fn with_user_root(self, root: Pfn) -> Space<F> {
        Space { user_root: Some(root), ..self }
    }

    /// Returns the number of bytes that user mode has: the lower half of what the root translates,
    /// or all of it in a format with a root for each half.
    pub(crate) const fn user_bytes(self) -> u64 {
        self.root_level.table_span().0 >> F::SPANS_BOTH_HALVES as u32
    }

    /// Returns the virtual address of an offset into the span of the root.
    pub(crate) fn address_at(self, offset: u64) -> u64 {
        F::address_at(offset, self.root_level.table_span().0, self.half)
    }
}

/// The kernel's and the user's root of the address space that a batch belongs to, if the space has
/// two roots, and how many of their entries, the first ones, are equal.
#[derive(Clone, Copy, Default)]
pub(crate) struct Roots(Option<(Pfn, Pfn, usize)>);

impl Roots {
    /// No space, or a space with one root.
    pub(crate) const NONE: Roots = Roots(None);

    pub(crate) fn of<F: Format>(space: Space<F>) -> Roots {
        let shared_entries = if F::SPANS_BOTH_HALVES { ENTRIES / 2 } else { ENTRIES };
        Roots(space.user_root.map(|user| (space.root, user, shared_entries)))
    }

    /// Returns the address of the entry in the user's root that must change together with the entry
    /// at `addr`, if there is one.
    pub(crate) fn user_copy(self, addr: EntryAddr) -> Option<EntryAddr> {
        let (kernel, user, shared_entries) = self.0?;
        let is_shared = addr.table() == kernel && addr.index() < shared_entries;
        is_shared.then(|| EntryAddr::new(user, addr.index()))
    }
}
