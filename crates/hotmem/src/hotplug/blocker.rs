//! What keeps memory from going.

use crate::addr::PfnRange;
use crate::isolate::IsolateError;
use core::fmt;

/// What keeps memory from going, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocker {
    /// The frames that stand in the way, or the range that was refused.
    pub range: PfnRange,
    /// Why they do.
    pub why: Why,
}

/// Why memory cannot go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The kernel says that these frames cannot be moved, and why.
    Pinned(&'static str),
    /// The kernel could not move these frames now.
    Retry,
    /// Metadata or descriptors of memory that stays lie here.
    Metadata,
    /// Somebody is in the middle of allocating or freeing here.
    Busy,
    /// Another isolation token holds it.
    HeldByAnother,
    /// It is out for reporting, until the host is done with it.
    Reporting,
    /// The kernel refused, and why.
    Veto(&'static str),
    /// There is no room elsewhere for what lives here, or the [floor](super::Settings::floor) is
    /// reached.
    ///
    /// The kernel was asked to [discard](crate::Hooks::discard) what it can do without.
    NoRoom {
        /// Frames that would have to move.
        live: u64,
        /// Frames that are free elsewhere, above the floor.
        free: u64,
    },
    /// It is not online, so there is nothing to isolate.
    NotOnline,
    /// The request was begun on another machine, which alone can go on with it. Nothing has
    /// changed.
    Foreign,
}

impl Blocker {
    pub(super) fn from_isolate(error: IsolateError) -> Blocker {
        let (range, why) = match error {
            IsolateError::Busy(range) => (range, Why::Busy),
            IsolateError::HeldByAnother(range) => (range, Why::HeldByAnother),
            IsolateError::Reporting(range) => (range, Why::Reporting),
            IsolateError::NotOnline(range) | IsolateError::Unaligned(range) => {
                (range, Why::NotOnline)
            }
        };
        Blocker { range, why }
    }

    /// Whether it may go away by itself, so that the same request is worth another try: a veto may
    /// be withdrawn.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self.why {
            Why::Retry
            | Why::Busy
            | Why::HeldByAnother
            | Why::Reporting
            | Why::Veto(_)
            | Why::NoRoom { .. } => true,
            Why::Pinned(_) | Why::Metadata | Why::NotOnline | Why::Foreign => false,
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.range)?;
        match self.why {
            Why::Pinned(why) => write!(f, "pinned ({why})"),
            Why::Retry => f.write_str("could not be moved now"),
            Why::Metadata => f.write_str("metadata of memory that stays"),
            Why::Busy => f.write_str("changing hands"),
            Why::HeldByAnother => f.write_str("isolated by somebody else"),
            Why::Reporting => f.write_str("out for reporting"),
            Why::Veto(why) => write!(f, "refused by the kernel ({why})"),
            Why::NoRoom { live, free } => {
                write!(f, "{live} frames live here and {free} are free elsewhere")
            }
            Why::NotOnline => f.write_str("not online"),
            Why::Foreign => f.write_str("begun on another machine"),
        }
    }
}

impl core::error::Error for Blocker {}
