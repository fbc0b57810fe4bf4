//! Defines how a kernel describes the memory that it finds at boot.

use super::nodes::too_many;
use crate::addr::{Bytes, Pfn};
use crate::words::NodeId;
use core::fmt;
use core::ops::Range;

/// A range of physical memory, in bytes, as firmware describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootRange {
    /// Physical address of the first byte.
    pub start: u64,
    /// The number of bytes.
    pub len: Bytes,
}

/// Converts a range of physical addresses, the end excluded. The result is empty if the end lies
/// below the start.
impl From<Range<u64>> for BootRange {
    fn from(Range { start, end }: Range<u64>) -> BootRange {
        BootRange { start, len: Bytes(end.saturating_sub(start)) }
    }
}

/// The memory that a kernel finds at boot. A list of RAM converts to a map in which all of the RAM is
/// mapped and on node 0, nothing is reserved, there is no low memory, and there are up to 8 CPUs.
///
/// ```
/// # use hotmem::{BootMap, BootRange};
/// # fn with_image<'m>(ram: &'m [BootRange], image: &'m [BootRange]) -> BootMap<'m> {
/// BootMap { reserved: image, ..ram.into() }
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BootMap<'a> {
    /// Usable RAM (e820 type 1), in any order. A frame that is only partly in a range is not used.
    pub ram: &'a [BootRange],
    /// Memory that is in use or must not be used: the kernel's image, its command line, tables,
    /// firmware. A frame is reserved even if only a part of it is in a range.
    pub reserved: &'a [BootRange],
    /// The memory of each NUMA node (SRAT), in any order. Memory in none of these ranges belongs to
    /// node 0. Boundaries are rounded up to sections (128 MiB).
    pub nodes: &'a [(BootRange, NodeId)],
    /// The end of the memory that the direct map covers already. Boot puts the engine's words below
    /// it.
    pub mapped_below: Pfn,
    /// The end of low memory, which every device can address: 4 GiB on a PC; 0 if there is no low
    /// memory. The engine rounds the end down to a section (128 MiB). Low kernel memory has its own
    /// statistics, so that the holes in low memory are not in the span of the zone that grows. A
    /// request without a [bound](crate::AllocRequest::within) gets low memory only if no other
    /// memory is free, except that a CPU may get memory that it has just freed.
    pub low_end: Pfn,
    /// The number of CPUs. Each CPU with a [number](crate::Platform::cpu) below this gets its own
    /// record of 128 bytes. The records of the first 8 lie in [`Frames`](crate::Frames), all others
    /// in boot memory. CPUs with higher numbers share records.
    pub cpus: u32,
}

impl<'a> From<&'a [BootRange]> for BootMap<'a> {
    fn from(ram: &'a [BootRange]) -> BootMap<'a> {
        let (mapped_below, low_end) = (Pfn::LIMIT, Pfn::ZERO);
        BootMap { ram, reserved: &[], nodes: &[], mapped_below, low_end, cpus: 8 }
    }
}

impl<'a, const N: usize> From<&'a [BootRange; N]> for BootMap<'a> {
    fn from(ram: &'a [BootRange; N]) -> BootMap<'a> {
        ram.as_slice().into()
    }
}

/// The reason why an instance could not be started. The failed call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootError {
    /// The instance has been started before.
    AlreadyStarted,
    /// This RAM wraps, or lies beyond the 52 bits of a physical address.
    BeyondPhysicalLimit(BootRange),
    /// This RAM ends above the memory that pointers of this target can address (4 GiB if they have
    /// 32 bits), or is not within the [mappable range](crate::Map::mappable_range).
    Unreachable(BootRange),
    /// The map names no whole frame of RAM.
    NoRam,
    /// All frames of RAM are reserved.
    NoMemory,
    /// This node would be one more than the [`MAX_NODES`](crate::MAX_NODES) that a machine can
    /// have.
    TooManyNodes(NodeId),
    /// No run of free RAM below `mapped_below` has the size that the words need, which is this.
    NoMetadata(Bytes),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::AlreadyStarted => f.write_str("the instance has been started before"),
            BootError::BeyondPhysicalLimit(range) => {
                write!(f, "{} at {:#x} lie beyond the physical limit", range.len, range.start)
            }
            BootError::Unreachable(range) => {
                write!(f, "{} at {:#x} cannot be mapped", range.len, range.start)
            }
            BootError::NoRam => f.write_str("the map has no RAM"),
            BootError::NoMemory => f.write_str("all RAM is reserved"),
            BootError::TooManyNodes(node) => too_many(f, *node),
            BootError::NoMetadata(bytes) => {
                write!(f, "no run of {bytes} of free and mapped RAM for the words")
            }
        }
    }
}

impl core::error::Error for BootError {}
