//! Address spaces.

use crate::entry::Level;
use hotmem_addr::Pfn;

/// The page tables of an address space: where their root is and how many levels there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// The frame of the root.
    pub root: Pfn,
    /// The frame of a separate root for user mode; the kernel then runs on `root`. 64-bit Xen PV
    /// guests and kernels with page-table isolation have one. The entries of its lower half equal
    /// those of `root` and point to the same tables.
    pub user_root: Option<Pfn>,
    /// The root's level: [`Level::L4`] or [`Level::L5`].
    pub levels: Level,
}

impl Space {
    /// Makes an address space with one root, of this level.
    #[must_use]
    pub const fn new(root: Pfn, levels: Level) -> Space {
        Space { root, user_root: None, levels }
    }

    /// Adds a second root, for user mode.
    #[must_use]
    pub const fn with_user_root(self, root: Pfn) -> Space {
        Space { user_root: Some(root), ..self }
    }
}
