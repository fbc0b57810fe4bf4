//! The memory that a kernel finds at boot, as it describes it.

use super::nodes::too_many;
use crate::addr::{Bytes, Pfn};
use crate::words::NodeId;
use core::fmt;
use core::ops::Range;

/// Bytes of physical memory, as firmware describes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootRange {
    /// Physical address of the first byte.
    pub start: u64,
    /// How many.
    pub len: Bytes,
}

/// The bytes at these physical addresses, the end excluded; none if it lies below the start.
impl From<Range<u64>> for BootRange {
    fn from(Range { start, end }: Range<u64>) -> BootRange {
        BootRange { start, len: Bytes(end.saturating_sub(start)) }
    }
}

/// The memory that a kernel finds at boot.
#[derive(Clone, Copy, Debug)]
pub struct BootMap<'a> {
    /// Usable RAM (e820 type 1), in any order. Frames that are only partly in a range are left out.
    pub ram: &'a [BootRange],
    /// What is in use or must not be used: the kernel's image, its command line, tables, firmware.
    /// Frames that are only partly in a range are reserved.
    pub reserved: &'a [BootRange],
    /// Which memory belongs to which NUMA node (SRAT), in any order. What is in none belongs to
    /// node 0. Boundaries are rounded up to sections (128 MiB).
    pub nodes: &'a [(BootRange, NodeId)],
    /// The engine's own words must lie below this: the end of what the direct map covers already.
    pub mapped_below: Pfn,
    /// Where low memory ends, rounded down to a section (128 MiB): memory that every device can
    /// address, 4 GiB on a PC. Kernel memory below it is counted apart, so that the zone that grows
    /// does not span the holes there, and requests without a [bound](crate::AllocRequest::below)
    /// use it last (but for what a CPU has just freed). Zero: there is no low memory.
    pub low_end: Pfn,
}

impl<'a> BootMap<'a> {
    /// This RAM, nothing reserved, one node, all of it mapped, none of it low.
    #[must_use]
    pub const fn of_ram(ram: &'a [BootRange]) -> BootMap<'a> {
        let (mapped_below, low_end) = (Pfn::LIMIT, Pfn::ZERO);
        BootMap { ram, reserved: &[], nodes: &[], mapped_below, low_end }
    }
}

/// Why a machine could not be started. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootError {
    /// It has been started before.
    AlreadyStarted,
    /// A range wraps or lies beyond the 52 bits of a physical address.
    BeyondPhysicalLimit(BootRange),
    /// This RAM ends above what pointers of this target can reach, 4 GiB where they have 32 bits,
    /// or outside the [reach](crate::Mapping::reach) of the kernel's mapping.
    Unreachable(BootRange),
    /// There is no frame of RAM that is not reserved.
    NoMemory,
    /// This node would be one more than the [`MAX_NODES`](crate::MAX_NODES) that a machine can
    /// have.
    TooManyNodes(NodeId),
    /// No free RAM below `mapped_below` is large enough for the words.
    NoMetadata(Bytes),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::AlreadyStarted => f.write_str("the machine has been started before"),
            BootError::BeyondPhysicalLimit(range) => {
                write!(f, "{} at {:#x} lie beyond the physical limit", range.len, range.start)
            }
            BootError::Unreachable(range) => {
                write!(f, "{} at {:#x} cannot be mapped", range.len, range.start)
            }
            BootError::NoMemory => f.write_str("no RAM that is not reserved"),
            BootError::TooManyNodes(node) => too_many(f, *node),
            BootError::NoMetadata(bytes) => write!(f, "no {bytes} of mapped RAM for the words"),
        }
    }
}

impl core::error::Error for BootError {}
