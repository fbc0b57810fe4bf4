//! Defines the error of everything that is refused for a range of frames.

use crate::addr::PfnRange;
use crate::geometry::is_pageblocks;
use core::fmt;

/// The refusal of a range. The failed call changed nothing, unless its documentation says
/// otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeError {
    /// The range, or the first part of it, that was refused.
    pub range: PfnRange,
    /// The reason.
    pub kind: RangeErrorKind,
}

/// The reason why a range was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeErrorKind {
    /// It has no frames.
    Empty,
    /// It is empty or not whole pageblocks (2 MiB).
    Unaligned,
    /// It ends above what pointers of this target can reach (4 GiB where they have 32 bits), or
    /// lies outside the [reach](crate::Mapping::reach) of the kernel's mapping.
    Unreachable,
    /// It is announced already.
    Announced,
    /// It is not within one announced region.
    NotAnnounced,
    /// It is present.
    Present,
    /// It is not present.
    NotPresent,
    /// It is device memory.
    Device,
    /// It is not device memory.
    NotDevice,
    /// It is online.
    Online,
    /// It is not online.
    NotOnline,
    /// It is being added or removed.
    Held,
    /// An isolation token owns it.
    Isolated,
    /// The host is working on a report of it: the caller may try again after the acknowledgement.
    Reporting,
    /// It is being allocated or freed: the caller may try again.
    Busy,
    /// It is present, device memory or held, belongs to another node, and shares a section
    /// (128 MiB) with a part of the range that was to be added. A section has one node.
    OtherNode,
    /// It holds the descriptors of memory that stays.
    Describes,
    /// The engine keeps its own data there, and cannot do without them.
    Metadata,
    /// It is poisoned.
    Poisoned,
    /// It is [pinned](crate::Hotplug::pin).
    Pinned,
    /// A part of it was [given to the host](crate::Frames::lend), by a balloon or as a hint, and
    /// the pageblock has not been wholly free since.
    Lent,
    /// It is not allocated: perhaps it was freed before.
    NotAllocated,
    /// It was not reserved at boot, or was freed before: see
    /// [`Hotplug::free_reserved`](crate::Hotplug::free_reserved).
    NotReserved,
    /// It is not online memory of this machine.
    Foreign,
    /// It would be one more than this number, [`MAX_PINS`](crate::MAX_PINS) or
    /// [`MAX_POISONED`](crate::MAX_POISONED).
    TooMany(usize),
    /// The kernel refused.
    Vetoed(Veto),
}

/// A refusal to map memory, put it online or take it offline, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Veto(pub &'static str);

impl RangeErrorKind {
    pub(crate) const fn at(self, range: PfnRange) -> RangeError {
        RangeError { range, kind: self }
    }
}

impl RangeError {
    /// Checks that `range` is whole pageblocks, and at least one.
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
            RangeErrorKind::Unaligned => "is not whole pageblocks",
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
            RangeErrorKind::Reporting => "is out for reporting",
            RangeErrorKind::Busy => "is being allocated or freed, try again",
            RangeErrorKind::OtherNode => "is another node's and shares a section with the range",
            RangeErrorKind::Describes => "holds the descriptors of memory that stays",
            RangeErrorKind::Metadata => "holds the engine's own data",
            RangeErrorKind::Poisoned => "is poisoned",
            RangeErrorKind::Pinned => "is pinned",
            RangeErrorKind::Lent => "was given to the host",
            RangeErrorKind::NotAllocated => "is not allocated",
            RangeErrorKind::NotReserved => "is not reserved since boot",
            RangeErrorKind::Foreign => "is not online memory of this machine",
            RangeErrorKind::TooMany(most) => {
                return write!(f, "would be more than the {most} that can be recorded");
            }
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
