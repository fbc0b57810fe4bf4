//! Defines the reason why memory cannot be plugged, brought online or unplugged.

use core::fmt;
use hotmem::{AddError, AnnounceError, Blocker, RangeError, RangeErrorKind};

/// The reason why memory cannot be plugged, brought online or unplugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The engine refuses a range.
    Range(RangeError),
    /// The engine cannot announce the region. [`AnnounceError::Range`] becomes [`Reason::Range`].
    Announce(AnnounceError),
    /// The engine cannot add memory. [`AddError::Range`] becomes [`Reason::Range`].
    Add(AddError),
    /// Memory cannot be removed now: the [`Blocker`] names its range and the reason.
    Blocked(Blocker),
    /// Another reason. The text is from the kernel's memory manager.
    Other(&'static str),
}

impl Reason {
    /// Returns whether a retry would fail for this reason again, unless the requested size changes.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Reason::Range(error) => match error.kind {
                RangeErrorKind::Unaligned
                | RangeErrorKind::Unreachable
                | RangeErrorKind::Announced
                | RangeErrorKind::NotAnnounced
                | RangeErrorKind::Present
                | RangeErrorKind::Device
                | RangeErrorKind::OtherNode => true,
                // The causes of the other errors may end: for example, memory is being added or
                // removed, or the kernel vetoes the change.
                _ => false,
            },
            Reason::Add(error) => matches!(error, AddError::TooManyNodes(_)),
            Reason::Announce(_) | Reason::Blocked(_) | Reason::Other(_) => false,
        }
    }
}

impl From<RangeError> for Reason {
    fn from(error: RangeError) -> Reason {
        Reason::Range(error)
    }
}

impl From<AnnounceError> for Reason {
    fn from(error: AnnounceError) -> Reason {
        match error {
            AnnounceError::Range(error) => Reason::Range(error),
            AnnounceError::NoMetadata(_) => Reason::Announce(error),
        }
    }
}

impl From<AddError> for Reason {
    fn from(error: AddError) -> Reason {
        match error {
            AddError::Range(error) => Reason::Range(error),
            error => Reason::Add(error),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Range(error) => error.fmt(f),
            Reason::Announce(error) => error.fmt(f),
            Reason::Add(error) => error.fmt(f),
            Reason::Blocked(blocker) => blocker.fmt(f),
            Reason::Other(reason) => f.write_str(reason),
        }
    }
}
