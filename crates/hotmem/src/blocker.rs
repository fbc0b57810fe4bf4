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
    pub kind: BlockerKind,
}

/// The reason why memory cannot be reported, taken offline or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockerKind {
    /// These frames, a run within one pageblock, are allocated.
    Allocated,
    /// The frames are [pinned](crate::Hotplug::pin), so that the host must not take their RAM.
    Pinned,
    /// The kernel cannot migrate these frames, for this reason.
    Unmovable(&'static str),
    /// The kernel could not migrate these frames now.
    Retry,
    /// This frame is [poisoned](crate::Hotplug::poison) and in use. Its contents cannot be migrated:
    /// the kernel must take it from its owner and free it. All other frames in use were migrated.
    Poisoned,
    /// The memory is boot memory, which is never removed.
    BootMemory,
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
    /// There is not enough free memory elsewhere: the allocated frames of this memory would have to
    /// move there, and [`min_free_frames`](crate::Settings::min_free_frames) must stay free.
    ///
    /// The request has already called [`Hooks::discard`](crate::Hooks::discard).
    NotEnoughFree {
        /// The number of frames that would have to move.
        live: u64,
        /// The number of frames that are free elsewhere, above
        /// [`min_free_frames`](crate::Settings::min_free_frames).
        free: u64,
    },
    /// There are no free frames for the page tables that would map the memory again if its removal
    /// were abandoned (see [`Map::remap_tables_needed`](crate::Map::remap_tables_needed)).
    NoTables,
    /// The memory is not online, so it cannot be isolated.
    NotOnline,
    /// The request began on another instance, and only that instance can continue it. The failed
    /// call changed nothing.
    Foreign,
}

impl BlockerKind {
    /// Returns a blocker that gives this reason for `range`.
    pub(crate) const fn at(self, range: PfnRange) -> Blocker {
        Blocker { range, kind: self }
    }
}

impl Blocker {
    pub(crate) fn from_isolate(error: RangeError) -> Blocker {
        let kind = match error.kind {
            RangeErrorKind::Busy => BlockerKind::Busy,
            RangeErrorKind::Isolated => BlockerKind::HeldByAnother,
            RangeErrorKind::Reporting => BlockerKind::Reporting,
            _ => BlockerKind::NotOnline,
        };
        Blocker { range: error.range, kind }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.range)?;
        match self.kind {
            BlockerKind::Allocated => f.write_str("allocated"),
            BlockerKind::Pinned => f.write_str("pinned"),
            BlockerKind::Unmovable(reason) => write!(f, "cannot be moved ({reason})"),
            BlockerKind::Retry => f.write_str("could not be moved now"),
            BlockerKind::Poisoned => f.write_str("poisoned and in use"),
            BlockerKind::BootMemory => f.write_str("boot memory, which is never removed"),
            BlockerKind::Metadata => {
                f.write_str("metadata, or descriptors of memory that is not to be removed")
            }
            BlockerKind::Busy => f.write_str("being allocated or freed"),
            BlockerKind::HeldByAnother => f.write_str("isolated by another token"),
            BlockerKind::Reporting => f.write_str("being reported"),
            BlockerKind::Veto(reason) => write!(f, "refused by the kernel ({reason})"),
            BlockerKind::NotEnoughFree { live, free } => {
                write!(f, "{live} frames would have to move, and only {free} are free elsewhere")
            }
            BlockerKind::NoTables => {
                f.write_str("no frames for the page tables to undo the removal")
            }
            BlockerKind::NotOnline => f.write_str("not online"),
            BlockerKind::Foreign => f.write_str("begun on another instance"),
        }
    }
}

impl core::error::Error for Blocker {}
