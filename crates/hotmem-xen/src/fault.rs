//! The errors of [`XenPv`](crate::XenPv).

use crate::abi::Errno;
use core::fmt;
use hotmem_addr::Pfn;
use hotmem_pgtable::x86_64::Entry;
use hotmem_pgtable::{EntryAddr, NoTable};

/// The purpose of a hypercall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HypercallPurpose {
    /// Changes entries.
    MmuUpdate,
    /// Unpins tables.
    Unpin,
    /// Flushes TLBs.
    Flush,
    /// Maps tables writable.
    Remap,
}

/// The reason why page tables were not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Xen refused a hypercall.
    Refused {
        /// The purpose of the hypercall.
        purpose: HypercallPurpose,
        /// Xen's error.
        errno: Errno,
    },
    /// The entry maps another domain's grant, which must be returned by `GNTTABOP_unmap_grant_ref`.
    GrantMapped {
        /// The entry's address.
        at: EntryAddr,
        /// The entry.
        entry: Entry,
    },
    /// Xen cleared this entry of the user's root, then refused to clear the same entry of the
    /// kernel's root, and then refused to restore the user's entry. In user mode, accesses to the
    /// pages of this entry fault, although the kernel has mapped them.
    LostFromUserRoot(EntryAddr),
    /// The entry is a large page, which PV guests cannot have.
    LargePage(Entry),
    /// The kernel does not map this table, so the table cannot be read.
    NotMapped(Pfn),
}

impl From<NoTable> for Fault {
    fn from(NoTable(frame): NoTable) -> Fault {
        Fault::NotMapped(frame)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Refused { purpose, errno } => write!(f, "Xen refused {purpose:?}: {errno}"),
            Fault::GrantMapped { at, entry } => write!(f, "{at:?} maps a grant: {entry:?}"),
            Fault::LostFromUserRoot(at) => {
                write!(f, "Xen cleared the user root's {at:?} and not the kernel's")
            }
            Fault::LargePage(entry) => write!(f, "{entry:?} is a large page"),
            Fault::NotMapped(table) => write!(f, "the table at {table} is not mapped"),
        }
    }
}

impl core::error::Error for Fault {}
