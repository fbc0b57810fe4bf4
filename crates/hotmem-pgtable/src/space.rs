//! An address space: where its roots are and how many levels there are.

use crate::entry::Level;
use hotmem_addr::Pfn;

/// The page tables of an address space: where their root is and how many levels there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// The frame of the root.
    pub root: Pfn,
    /// The frame of the root that user mode runs on, if that is another: the kernel then runs on
    /// `root`. So it is for 64-bit guests of Xen PV, and for kernels that hide themselves from user
    /// mode. Its entries of the lower half are those of `root`, and name the same tables.
    pub user_root: Option<Pfn>,
    /// The root's level: [`Level::L4`] or [`Level::L5`].
    pub levels: Level,
}

impl Space {
    /// An address space with one root, of this level.
    #[must_use]
    pub const fn new(root: Pfn, levels: Level) -> Space {
        Space { root, user_root: None, levels }
    }

    /// The same with a second root, for user mode.
    #[must_use]
    pub const fn with_user_root(self, root: Pfn) -> Space {
        Space { user_root: Some(root), ..self }
    }
}
