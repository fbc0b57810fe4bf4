//! Why the machine refused.

use crate::abi::Errno;
use core::fmt;
use hotmem_addr::Pfn;
use hotmem_pgtable::{Entry, EntryAddr, NoTable};

/// A hypercall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Entries were to be changed.
    MmuUpdate,
    /// Tables were to be unpinned.
    Unpin,
    /// TLBs were to be flushed.
    Flush,
    /// Tables were to be mapped writable.
    Remap,
}

/// Why page tables were not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Xen refused.
    Refused {
        /// What.
        call: Call,
        /// Why.
        errno: Errno,
    },
    /// The entry maps another domain's grant, which `GNTTABOP_unmap_grant_ref` must give back.
    GrantMapped {
        /// Where it is.
        at: EntryAddr,
        /// What it is.
        entry: Entry,
    },
    /// Xen cleared this entry of the user's root and then refused to clear the kernel's, and to put
    /// the user's back: user mode faults there although the kernel has the pages.
    LostFromUserRoot(EntryAddr),
    /// Xen gives PV guests no large pages, so none can be split.
    LargePage(Entry),
    /// The kernel does not map this table, so that nothing could be read of it.
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
            Fault::Refused { call, errno } => write!(f, "Xen refused {call:?}: {errno}"),
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
