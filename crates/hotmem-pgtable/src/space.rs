//! Defines address spaces, and which entries of their two roots change together.

use crate::entry::{ENTRIES, EntryAddr, Level};
use hotmem_addr::Pfn;

/// The root of an address space's page tables, and the number of their levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// The frame of the root.
    pub root: Pfn,
    /// The frame of the user's root, if user mode has a separate one; the kernel then runs on
    /// `root`. 64-bit Xen PV guests and kernels with page-table isolation have a user's root. The
    /// entries of its lower half equal those of `root`, and so point to the same tables.
    pub user_root: Option<Pfn>,
    /// The root's level: [`Level::L4`] or [`Level::L5`].
    pub root_level: Level,
}

impl Space {
    /// Creates an address space with one root, of this level.
    #[must_use]
    pub const fn new(root: Pfn, root_level: Level) -> Space {
        Space { root, user_root: None, root_level }
    }

    /// Returns the same address space with `root` as its user's root.
    #[must_use]
    pub const fn with_user_root(self, root: Pfn) -> Space {
        Space { user_root: Some(root), ..self }
    }
}

/// The kernel's and the user's root of the address space that a batch belongs to, if the space has
/// two roots.
#[derive(Clone, Copy, Default)]
pub(crate) struct Roots(Option<(Pfn, Pfn)>);

impl Roots {
    /// No space, or a space with one root.
    pub(crate) const NONE: Roots = Roots(None);

    pub(crate) fn of(space: Space) -> Roots {
        Roots(space.user_root.map(|user| (space.root, user)))
    }

    /// Returns the address of the entry in the user's root that must change together with the entry
    /// at `addr`, if there is one.
    pub(crate) fn user_copy(self, addr: EntryAddr) -> Option<EntryAddr> {
        let (kernel, user) = self.0?;
        let is_shared = addr.table() == kernel && addr.index() < ENTRIES / 2;
        is_shared.then(|| EntryAddr::new(user, addr.index()))
    }
}
