//! Defines the blocker: memory that cannot be reported, taken offline or removed, and the reason.

use crate::addr::PfnRange;
use crate::range_error::{RangeError, RangeErrorKind};
use core::fmt;

/// Memory that cannot be reported, taken offline or removed, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocker {
    /// The frames that prevent the operation, or the range that was refused.
    pub range: PfnRange,
    /// The reason.
    pub why: Why,
}

/// The reason why memory cannot be reported, taken offline or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// These frames, a run within one pageblock, are allocated.
    Allocated,
    /// The frames are [pinned](crate::Hotplug::pin), so that the host must not take their RAM.
    Pinned,
    /// The kernel cannot migrate these frames, for this reason.
    Unmovable(&'static str),
    /// The kernel could not migrate these frames now.
    Retry,
    /// The frames hold the engine's metadata, or descriptors of memory that is not to be removed.
    Metadata,
    /// An allocation or a free in this pageblock is in flight: try again.
    Busy,
    /// Another isolation token owns the memory.
    HeldByAnother,
    /// The host is working on a report of the memory: it stays isolated until the host
    /// acknowledges.
    Reporting,
    /// The kernel refused, for this reason.
    Veto(&'static str),
    /// There is not enough free memory elsewhere for the allocated frames of this memory and for
    /// the [floor](crate::Settings::floor).
    ///
    /// The request has already called [`Hooks::discard`](crate::Hooks::discard).
    NotEnoughFree {
        /// The number of frames that would have to move.
        live: u64,
        /// The number of frames that are free elsewhere, above the floor.
        free: u64,
    },
    /// The memory is not online, so it cannot be isolated.
    NotOnline,
    /// The request began on another machine, and only that machine can continue it. The failed call
    /// changed nothing.
    Foreign,
}

impl Why {
    /// Returns a blocker that gives this reason for `range`.
    pub(crate) const fn at(self, range: PfnRange) -> Blocker {
        Blocker { range, why: self }
    }
}

impl Blocker {
    pub(crate) fn from_isolate(error: RangeError) -> Blocker {
        let why = match error.kind {
            RangeErrorKind::Busy => Why::Busy,
            RangeErrorKind::Isolated => Why::HeldByAnother,
            RangeErrorKind::Reporting => Why::Reporting,
            _ => Why::NotOnline,
        };
        Blocker { range: error.range, why }
    }

    /// Returns whether the same request may succeed later without an action of the caller. Returns
    /// true for a veto, because the kernel may agree next time.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self.why {
            Why::Allocated
            | Why::Retry
            | Why::Busy
            | Why::HeldByAnother
            | Why::Reporting
            | Why::Veto(_)
            | Why::NotEnoughFree { .. } => true,
            Why::Pinned | Why::Unmovable(_) | Why::Metadata | Why::NotOnline | Why::Foreign => {
                false
            }
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.range)?;
        match self.why {
            Why::Allocated => f.write_str("allocated"),
            Why::Pinned => f.write_str("pinned"),
            Why::Unmovable(why) => write!(f, "cannot be moved ({why})"),
            Why::Retry => f.write_str("could not be moved now"),
            Why::Metadata => {
                f.write_str("metadata, or descriptors of memory that is not to be removed")
            }
            Why::Busy => f.write_str("being allocated or freed"),
            Why::HeldByAnother => f.write_str("isolated by another token"),
            Why::Reporting => f.write_str("out for reporting"),
            Why::Veto(why) => write!(f, "refused by the kernel ({why})"),
            Why::NotEnoughFree { live, free } => {
                write!(f, "{live} frames would have to move, and only {free} are free elsewhere")
            }
            Why::NotOnline => f.write_str("not online"),
            Why::Foreign => f.write_str("begun on another machine"),
        }
    }
}

impl core::error::Error for Blocker {}
