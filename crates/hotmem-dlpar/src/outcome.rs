//! Defines the progress and the results of requests.

use crate::connector_error::{BUSY, ConnectorError, ConnectorFailure};
use crate::description::{Change, LmbCount, Request};
use crate::property::DrcIndex;
use core::fmt;
use hotmem::{AddError, AnnounceError, Blocker, BlockerKind, PfnRange, RangeError, RangeErrorKind};

/// The progress of the open request. It is [`Idle`](hotmem::Progress::Idle) if no request is open.
pub type Progress = hotmem::Progress<Result<Summary, Failure>, Wait>;

/// The reason why a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The hypervisor is busy with this connector.
    Connector {
        /// The connector.
        connector: DrcIndex,
        /// The delay that the platform requests.
        milliseconds: u32,
    },
    /// The platform is busy with the update of the device tree.
    Update {
        /// The delay that the platform requests.
        milliseconds: u32,
    },
    /// Memory cannot be taken offline at the moment. It may be possible later.
    Memory(Blocker),
    /// The request was polled with another instance than the table's. Nothing has changed.
    OtherInstance,
}

/// The summary of a request that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Whether LMBs were added or removed.
    pub change: Change,
    /// The number of LMBs that were added or removed.
    pub lmbs: u32,
    /// The number of ranges in which their memory was handed to the engine: neighbours of one node
    /// form one range, whatever the budget of a poll.
    pub ranges: u32,
    /// The number of LMBs that a request by count skipped because of a failure.
    pub skipped: u32,
    /// The error for which the request skipped the first of these LMBs.
    pub first_skip_error: Option<Error>,
    /// The number of LMBs that were added to a node that is not theirs, because their section (128
    /// MiB) already has memory of that node, or because the engine has no room for one more node.
    pub misplaced: u32,
    /// The number of LMBs that were skipped and not restored; see [`Failure::unrestored`].
    pub unrestored: u32,
    /// The number of LMBs that were skipped and lost; see [`Failure::lost`].
    pub lost: u32,
}

/// An LMB that a request could not change or not restore. See
/// [`Connectors::refused`](crate::Connectors::refused).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedLmb {
    /// The LMB's connector; `None` if the LMB was refused because it has no connector.
    pub connector: Option<DrcIndex>,
    /// The LMB's frames.
    pub range: PfnRange,
    /// The state of the LMB at the end of the request.
    pub final_state: FinalState,
    /// The reason.
    pub error: Error,
}

/// The state of an LMB at the end of a request that could not change the LMB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinalState {
    /// The state before the request. If the request is still being undone, the LMB will be in this
    /// state at the end.
    AsItWas,
    /// Another state than before the request. [`Failure::unrestored`] or [`Summary::unrestored`]
    /// counts the LMB.
    Unrestored,
    /// Lost to the partition: it was released and could not be acquired again. [`Failure::lost`] or
    /// [`Summary::lost`] counts it.
    Lost,
}

/// The failure of a request. The machine is in the same state as before the request, except for the
/// LMBs that `unrestored` and `lost` count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The reason.
    pub error: Error,
    /// The error for which a request by count skipped the first LMB.
    pub first_skip_error: Option<Error>,
    /// The number of LMBs that were not restored: added memory that is already in use, memory that
    /// stayed offline or is online in another zone, or a connector that could not be released.
    pub unrestored: u32,
    /// The number of LMBs that the partition has lost: they were released and could not be acquired
    /// again.
    pub lost: u32,
}

/// The reason why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Another request is open, and must be polled to its end first. Contains that request.
    InProgress(Request),
    /// The LMBs belong to another instance.
    OtherInstance,
    /// The request is for no LMBs.
    Zero,
    /// Not enough LMBs are available.
    NotEnough {
        /// The number of LMBs requested.
        wanted: u32,
        /// The number of LMBs available.
        available: u32,
    },
    /// No LMB has this connector.
    Unknown(DrcIndex),
    /// The table has fewer LMBs from this connector on.
    BeyondTable {
        /// The connector of the first LMB.
        first: DrcIndex,
        /// The number of LMBs requested.
        count: u32,
        /// The number of LMBs from that connector on.
        there: u32,
    },
    /// The LMB at this address is reserved, or has no connector.
    Reserved {
        /// The LMB's physical address.
        address: u64,
    },
    /// The partition already has the LMB with this connector.
    Assigned(DrcIndex),
    /// The partition does not have the LMB with this connector.
    NotAssigned(DrcIndex),
    /// The hypervisor refused a call for a connector.
    Connector(ConnectorError),
    /// The engine cannot announce the memory.
    Announce(AnnounceError),
    /// The engine cannot add the memory.
    Add(AddError),
    /// The memory could not be put online.
    Online(RangeError),
    /// The memory cannot be taken offline because of this blocker.
    Blocked(Blocker),
    /// A part of the LMB is online, and another part is not.
    Mixed(DrcIndex),
    /// The LMB was online in two zones and is in one zone now, because the engine forgets zones
    /// when memory is removed.
    Zones(DrcIndex),
    /// The device tree says that the partition has the LMB, but its memory is not present in the
    /// engine.
    NotPresent(DrcIndex),
    /// The engine cannot take the memory offline.
    Offline(RangeError),
    /// The engine cannot remove the memory.
    Remove(RangeError),
    /// The platform refused the update of the device tree with this status.
    Update(i32),
    /// The caller cancelled the request.
    Cancelled,
}

impl Error {
    /// Returns whether the same request may succeed later without intervention, because of a veto,
    /// memory in use, or a shortage. A request by count may also succeed later if it skipped LMBs
    /// for such a reason ([`Failure::first_skip_error`]).
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::InProgress(_) => true,
            Error::Connector(error) => {
                !error.is_stuck && error.failure == ConnectorFailure::Failed(BUSY)
            }
            Error::Announce(error) => matches!(error, AnnounceError::NoMetadata(_)),
            Error::Add(AddError::NoMetadata(_) | AddError::NoTables { .. }) => true,
            Error::Add(AddError::Range(error)) => error.kind == RangeErrorKind::Held,
            Error::Online(error) => {
                matches!(error.kind, RangeErrorKind::Held | RangeErrorKind::Vetoed(_))
            }
            Error::Blocked(blocker) => is_temporary(blocker.kind),
            Error::Remove(error) => error.kind == RangeErrorKind::Held,
            Error::Add(AddError::TooManyNodes(_))
            | Error::OtherInstance
            | Error::Zero
            | Error::NotEnough { .. }
            | Error::Unknown(_)
            | Error::BeyondTable { .. }
            | Error::Reserved { .. }
            | Error::Assigned(_)
            | Error::NotAssigned(_)
            | Error::Mixed(_)
            | Error::Zones(_)
            | Error::NotPresent(_)
            | Error::Offline(_)
            | Error::Update(_)
            | Error::Cancelled => false,
        }
    }
}

/// Returns whether the memory may go offline later without intervention. Returns true for a veto,
/// because the kernel may agree next time.
fn is_temporary(blocker: BlockerKind) -> bool {
    match blocker {
        BlockerKind::Allocated
        | BlockerKind::Poisoned
        | BlockerKind::Retry
        | BlockerKind::Busy
        | BlockerKind::HeldByAnother
        | BlockerKind::Reporting
        | BlockerKind::Veto(_)
        | BlockerKind::NotEnoughFree { .. }
        | BlockerKind::NoTables => true,
        BlockerKind::Pinned
        | BlockerKind::Unmovable(_)
        | BlockerKind::BootMemory
        | BlockerKind::Metadata
        | BlockerKind::NotOnline
        | BlockerKind::Foreign => false,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, first_skip_error: None, unrestored: 0, lost: 0 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if let Some(skip_error) = self.first_skip_error {
            write!(f, "; the first LMB was skipped because: {skip_error}")?;
        }
        if self.unrestored > 0 {
            write!(f, "; not restored: {}", LmbCount(self.unrestored))?;
        }
        if self.lost > 0 {
            write!(f, "; lost: {}", LmbCount(self.lost))?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InProgress(open) => write!(f, "a request to {open} is open"),
            Error::OtherInstance => f.write_str("the LMBs belong to another instance"),
            Error::Zero => f.write_str("the request is for no LMBs"),
            Error::NotEnough { wanted, available } => {
                write!(f, "{} requested, {available} available", LmbCount(*wanted))
            }
            Error::Unknown(index) => write!(f, "no LMB has DRC index {index}"),
            Error::BeyondTable { first, count, there } => {
                write!(
                    f,
                    "{} requested from DRC index {first} on, and there are {there}",
                    LmbCount(*count)
                )
            }
            Error::Reserved { address } => write!(f, "the LMB at {address:#x} is reserved"),
            Error::Assigned(index) => {
                write!(f, "the partition already has the LMB with DRC index {index}")
            }
            Error::NotAssigned(index) => {
                write!(f, "the partition does not have the LMB with DRC index {index}")
            }
            Error::Connector(error) => error.fmt(f),
            Error::Announce(error) => error.fmt(f),
            Error::Add(error) => error.fmt(f),
            Error::Online(error) => error.fmt(f),
            Error::Blocked(blocker) => blocker.fmt(f),
            Error::Mixed(index) => {
                write!(f, "the LMB with DRC index {index} is only partly online")
            }
            Error::Zones(index) => {
                write!(
                    f,
                    "the LMB with DRC index {index} was online in two zones and is in one now"
                )
            }
            Error::NotPresent(index) => {
                write!(
                    f,
                    "the LMB with DRC index {index} is assigned, but its memory is not present"
                )
            }
            Error::Offline(error) => error.fmt(f),
            Error::Remove(error) => error.fmt(f),
            Error::Update(status) => {
                write!(f, "the device tree was not updated: status {status}")
            }
            Error::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl core::error::Error for Failure {}
impl core::error::Error for Error {}
