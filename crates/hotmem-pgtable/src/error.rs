//! Defines the error of an operation that stops before the end of its range.

use crate::entry::Entry;
use crate::format::Format;
use crate::level::Level;
use crate::mmu::Mmu;
use crate::range::VirtRange;
use core::fmt;
use hotmem_addr::Pfn;

/// The error of an operation that stopped before the end of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped<Fault, F: Format> {
    /// The address at which the operation stopped. Below this address, the operation is complete,
    /// and [`Owner::unmapped`](crate::Owner::unmapped) has received the pages. From this address on,
    /// nothing was changed, except that a large page around this address may have been split. If
    /// only the flush failed, this address is the end of the range, modulo 2^64.
    pub address: u64,
    /// The reason why the operation stopped.
    pub reason: StopReason<Fault, F>,
    /// Whether the completed part was flushed from all TLBs. If not, the frames that
    /// [`Owner`](crate::Owner) has received must not be reused yet.
    pub is_flushed: bool,
}

/// The error of an operation that uses the MMU `M`.
pub type StoppedBy<M> = Stopped<<M as Mmu>::Fault, <M as Mmu>::Format>;

/// The reason why an operation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason<Fault, F: Format> {
    /// The range is not canonical for the number of levels of the address space.
    NotCanonical(VirtRange),
    /// An entry points to a frame that the kernel does not use as a page table.
    NotATable {
        /// The frame.
        frame: Pfn,
        /// The level of the table that the entry should point to.
        level: Level,
    },
    /// The entry is present, but the format has no such entry on its level.
    Malformed(Entry<F>),
    /// The two roots do not point to the same table at this address, so it is unclear what is
    /// mapped.
    RootsDiffer {
        /// The entry of the kernel's root.
        kernel: Entry<F>,
        /// The entry of the user's root.
        user: Entry<F>,
    },
    /// The range ends within the span of this entry, which is not present and holds data of the
    /// kernel.
    WithinSoftwareEntry(Entry<F>),
    /// The owner provided no frame for a missing table, or for the table that splits the large page
    /// of this entry.
    NoTableFrame(Entry<F>),
    /// The entry is in use already.
    Occupied(Entry<F>),
    /// The entry does not map a page of the expected level, or a page of that level cannot begin at
    /// this address.
    NotAPage(Entry<F>),
    /// The [`Mmu`](crate::Mmu) refused, for this reason.
    Mmu(Fault),
}

impl<Fault, F: Format> Stopped<Fault, F> {
    pub(crate) fn new(address: u64, reason: StopReason<Fault, F>) -> Stopped<Fault, F> {
        Stopped { address, reason, is_flushed: true }
    }
}

impl<Fault: fmt::Display, F: Format> fmt::Display for Stopped<Fault, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped at {:#x}: {}", self.address, self.reason)?;
        if self.is_flushed { Ok(()) } else { f.write_str(", not flushed") }
    }
}

impl<Fault: fmt::Display, F: Format> fmt::Display for StopReason<Fault, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::NotCanonical(range) => write!(f, "{range:?} is not canonical"),
            StopReason::NotATable { frame, level } => {
                write!(f, "the frame at {frame} is not an {level:?} table of this kernel")
            }
            StopReason::Malformed(entry) => {
                write!(f, "{entry:?} is present, but no entry of its level can have these bits")
            }
            StopReason::RootsDiffer { kernel, user } => {
                write!(f, "the kernel's root has {kernel:?} and the user's {user:?}")
            }
            StopReason::WithinSoftwareEntry(entry) => write!(
                f,
                "the range ends within the span of {entry:?}, which holds data of the kernel"
            ),
            StopReason::NoTableFrame(entry) => {
                write!(f, "no frame for a table in place of {entry:?}")
            }
            StopReason::Occupied(entry) => write!(f, "{entry:?} is in use already"),
            StopReason::NotAPage(entry) => {
                write!(f, "{entry:?} is not a page of the expected level")
            }
            StopReason::Mmu(fault) => write!(f, "the MMU refused: {fault}"),
        }
    }
}

impl<Fault: fmt::Debug + fmt::Display, F: Format> core::error::Error for Stopped<Fault, F> {}
