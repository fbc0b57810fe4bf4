//! Defines the error of an operation that stops before the end of its range.

use crate::entry::{Entry, Level};
use crate::range::VirtRange;
use core::fmt;
use hotmem_addr::Pfn;

/// The error of an operation that stopped before the end of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped<F> {
    /// The address at which the operation stopped. The part of the range below this address is done
    /// and reported. From this address on, nothing was changed, except that a large page around
    /// this address may have been split. If only the flush failed, this is the end of the range,
    /// modulo 2^64.
    pub at: u64,
    /// The reason why the operation stopped.
    pub why: Why<F>,
    /// Whether the completed part was flushed from all TLBs. If not, the reported frames must not
    /// be reused yet.
    pub flushed: bool,
}

/// The reason why an operation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why<F> {
    /// The range is not canonical in an address space with so many levels.
    NotCanonical(VirtRange),
    /// An entry points to a frame in which the kernel has no table.
    NotATable {
        /// The frame.
        frame: Pfn,
        /// The level of the table that the entry should point to.
        level: Level,
    },
    /// The entry maps a page on a level that has no pages.
    Malformed(Entry),
    /// The two roots do not point to the same table at this address, so it is unclear what is
    /// mapped.
    RootsDiffer {
        /// The entry of the kernel's root.
        kernel: Entry,
        /// The entry of the user's root.
        user: Entry,
    },
    /// The range ends within the span of this entry, which is not present and holds data of the
    /// kernel.
    WithinSoftwareEntry(Entry),
    /// The owner provided no frame for a missing table, or for the table that splits the large page
    /// of this entry.
    NoTableFrame(Entry),
    /// The entry is in use already.
    Occupied(Entry),
    /// The entry does not map a page of the expected level, or a page of that level cannot begin at
    /// this address.
    NotAPage(Entry),
    /// The [`Mmu`](crate::Mmu) refused, for this reason.
    Mmu(F),
}

impl<F> Stopped<F> {
    pub(crate) fn new(at: u64, why: Why<F>) -> Stopped<F> {
        Stopped { at, why, flushed: true }
    }
}

impl<F: fmt::Display> fmt::Display for Stopped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped at {:#x}: {}", self.at, self.why)?;
        if self.flushed { Ok(()) } else { f.write_str(", not flushed") }
    }
}

impl<F: fmt::Display> fmt::Display for Why<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotCanonical(range) => write!(f, "{range:?} is not canonical"),
            Why::NotATable { frame, level } => {
                write!(f, "the frame at {frame} is not an {level:?} table of this kernel")
            }
            Why::Malformed(entry) => {
                write!(f, "{entry:?} is a large page on a level that has no pages")
            }
            Why::RootsDiffer { kernel, user } => {
                write!(f, "the kernel's root has {kernel:?} and the user's {user:?}")
            }
            Why::WithinSoftwareEntry(entry) => write!(
                f,
                "the range ends within the span of {entry:?}, which holds data of the kernel"
            ),
            Why::NoTableFrame(entry) => write!(f, "no frame for a table in place of {entry:?}"),
            Why::Occupied(entry) => write!(f, "{entry:?} is in use already"),
            Why::NotAPage(entry) => write!(f, "{entry:?} is not a page of the expected level"),
            Why::Mmu(fault) => write!(f, "the machine refused: {fault}"),
        }
    }
}

impl<F: fmt::Debug + fmt::Display> core::error::Error for Stopped<F> {}
