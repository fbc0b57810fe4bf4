//! Where an operation stopped, and why.

use crate::entry::{Entry, Level};
use crate::range::VirtRange;
use core::fmt;
use hotmem_addr::Pfn;

/// An operation that could not be done to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped<F> {
    /// Everything of the range below this address is done and told; from it on nothing was touched
    /// (a large page that it lies in may have been split). Behind the range's last, wrapping, if
    /// all was done but the flush.
    pub at: u64,
    /// Why.
    pub why: Why<F>,
    /// Whether what is done was flushed. If not, what was told must not be used again yet.
    pub flushed: bool,
}

/// Why an operation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why<F> {
    /// The range is not canonical with this many levels.
    NotCanonical(VirtRange),
    /// An entry names a table that is none of the kernel's: outside its memory, or not owned.
    NotATable {
        /// The frame.
        frame: Pfn,
        /// The level of table that it should be.
        level: Level,
    },
    /// A page of a level that has none.
    Malformed(Entry),
    /// The two roots do not name the same table here, so that neither says what is mapped.
    RootsDiffer {
        /// The entry of the kernel's root.
        kernel: Entry,
        /// The entry of the user's root.
        user: Entry,
    },
    /// The range ends within what the kernel has noted in this one entry.
    WithinNote(Entry),
    /// There was no frame for the table that is missing here, or that splits this large page.
    NoTableFrame(Entry),
    /// Something is here already.
    Occupied(Entry),
    /// No page of the level that it should be one of, or not where such a page can be.
    NotAPage(Entry),
    /// The machine refused.
    Mmu(F),
}

impl<F> Stopped<F> {
    pub(crate) fn before(at: u64, why: Why<F>) -> Stopped<F> {
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
                write!(f, "the frame at {frame} is no {level:?} table of this kernel")
            }
            Why::Malformed(entry) => write!(f, "{entry:?} is a page of a level that has none"),
            Why::RootsDiffer { kernel, user } => {
                write!(f, "the kernel's root has {kernel:?} and the user's {user:?}")
            }
            Why::WithinNote(entry) => write!(f, "the range ends within software {entry:?}"),
            Why::NoTableFrame(entry) => write!(f, "no frame for a table instead of {entry:?}"),
            Why::Occupied(entry) => write!(f, "{entry:?} is here already"),
            Why::NotAPage(entry) => write!(f, "{entry:?} is no page here"),
            Why::Mmu(fault) => write!(f, "the machine refused: {fault}"),
        }
    }
}

impl<F: fmt::Debug + fmt::Display> core::error::Error for Stopped<F> {}
