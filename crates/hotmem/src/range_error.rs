//! Defines the error of calls that refuse a range of frames.

use crate::addr::PfnRange;
use crate::geometry::is_pageblocks;
use core::fmt;

/// The refusal of a range. The failed call changed nothing, unless its documentation says
/// otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeError {
    /// The part of the range that was refused, or the whole range.
    pub range: PfnRange,
    /// The reason.
    pub kind: RangeErrorKind,
}

/// The reason why a range was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeErrorKind {
    /// The range has no frames.
    Empty,
    /// The range is empty, or does not consist of whole pageblocks (2 MiB).
    Unaligned,
    /// The range ends above the memory that pointers of this target can address (4 GiB if they have
    /// 32 bits), or is not within the [mappable range](crate::Map::mappable_range).
    Unreachable,
    /// The range is announced already.
    Announced,
    /// The range is not within one announced region.
    NotAnnounced,
    /// The range is present.
    Present,
    /// The range is not present.
    NotPresent,
    /// The range is device memory.
    Device,
    /// The range is not device memory.
    NotDevice,
    /// The range is online.
    Online,
    /// The range is not online.
    NotOnline,
    /// The range is being added or removed.
    Held,
    /// An isolation token owns the range.
    Isolated,
    /// The host is working on a report of the range: the caller may try again after the
    /// acknowledgement.
    Reporting,
    /// The range is being allocated or freed: the caller may try again.
    Busy,
    /// The range shares a section (128 MiB) with memory that was to be announced or added, and
    /// belongs to another node. A section that has present, device or held memory cannot change its
    /// node.
    OtherNode,
    /// The range holds the descriptors of memory that is not to be removed.
    HoldsDescriptors,
    /// The frames for the page tables that would map the range again, if its removal were
    /// abandoned, could not be allocated.
    NoTables {
        /// The number of frames.
        frames: u64,
    },
    /// The range is boot memory, which is never removed.
    BootMemory,
    /// The engine keeps metadata in the range.
    Metadata,
    /// The range is poisoned, and would have to hold descriptors.
    Poisoned,
    /// The range is [pinned](crate::Hotplug::pin).
    Pinned,
    /// A part of the range lies in a pageblock of which frames are [lent to the
    /// host](crate::LentMemory), by a balloon or as a hint.
    Lent,
    /// A part of the range is not lent by this lender.
    NotLent,
    /// The range is not allocated: perhaps it was freed before.
    NotAllocated,
    /// The range is not online memory of this instance.
    Foreign,
    /// The engine has recorded this number of ranges already, which is
    /// [`MAX_PINS`](crate::MAX_PINS).
    TooMany(usize),
    /// No kernel memory is free for the engine's record of the range.
    NoMemory,
    /// The kernel refused.
    Vetoed(Veto),
}

/// The kernel's refusal to map memory, put it online or take it offline, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Veto(pub &'static str);

impl RangeErrorKind {
    pub(crate) const fn at(self, range: PfnRange) -> RangeError {
        RangeError { range, kind: self }
    }
}

impl RangeError {
    /// Checks that `range` consists of whole pageblocks, at least one.
    pub(crate) const fn check_pageblocks(range: PfnRange) -> Result<(), RangeError> {
        if !is_pageblocks(range) {
            return Err(RangeErrorKind::Unaligned.at(range));
        }
        Ok(())
    }
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.range)?;
        f.write_str(match self.kind {
            RangeErrorKind::Empty => "has no frames",
            RangeErrorKind::Unaligned => "does not consist of whole pageblocks",
            RangeErrorKind::Unreachable => "cannot be mapped",
            RangeErrorKind::Announced => "is announced already",
            RangeErrorKind::NotAnnounced => "is not announced",
            RangeErrorKind::Present => "is present",
            RangeErrorKind::NotPresent => "is not present",
            RangeErrorKind::Device => "is device memory",
            RangeErrorKind::NotDevice => "is not device memory",
            RangeErrorKind::Online => "is online",
            RangeErrorKind::NotOnline => "is not online",
            RangeErrorKind::Held => "is being added or removed",
            RangeErrorKind::Isolated => "is isolated",
            RangeErrorKind::Reporting => "is being reported",
            RangeErrorKind::Busy => "is being allocated or freed, try again",
            RangeErrorKind::OtherNode => {
                "belongs to another node and shares a section with the range"
            }
            RangeErrorKind::HoldsDescriptors => {
                "holds the descriptors of memory that is not to be removed"
            }
            RangeErrorKind::NoTables { frames } => {
                return write!(f, "needs {frames} frames for page tables, and not enough are free");
            }
            RangeErrorKind::BootMemory => "is boot memory, which is never removed",
            RangeErrorKind::Metadata => "holds the engine's metadata",
            RangeErrorKind::Poisoned => "is poisoned, and would have to hold descriptors",
            RangeErrorKind::Pinned => "is pinned",
            RangeErrorKind::Lent => "is lent to the host",
            RangeErrorKind::NotLent => "is not lent to the host",
            RangeErrorKind::NotAllocated => "is not allocated",
            RangeErrorKind::Foreign => "is not online memory of this instance",
            RangeErrorKind::TooMany(limit) => {
                return write!(f, "cannot be recorded: {limit} are recorded already");
            }
            RangeErrorKind::NoMemory => "cannot be recorded: no kernel memory is free",
            RangeErrorKind::Vetoed(veto) => return write!(f, "is refused by the kernel ({veto})"),
        })
    }
}

impl core::error::Error for RangeError {}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
