//! What comes of a request.

use super::wanted::{Change, Request};
use crate::connector_error::{BUSY, ConnectorError, Wrong};
use crate::property::DrcIndex;
use core::fmt;
use hotmem::{AddError, AnnounceError, Blocker, OfflineError, OnlineError, PfnRange, RemoveError};

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// No request is open.
    Idle,
    /// It is over.
    Done(Result<Summary, Failure>),
    /// The budget is used up: poll again.
    Working,
    /// It cannot go on for now: poll again later, or cancel.
    Pending(Wait),
}

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The hypervisor, for this connector.
    Connector {
        /// Which one.
        connector: DrcIndex,
        /// It asked for so much time.
        milliseconds: u32,
    },
    /// The device tree's new properties to be taken.
    Update {
        /// The platform asked for so much time.
        milliseconds: u32,
    },
    /// Memory that may be able to leave later.
    Memory(Blocker),
    /// The machine that the table belongs to: it was polled with another one, and nothing has
    /// changed.
    Elsewhere,
}

/// A request that was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Which way.
    pub change: Change,
    /// LMBs that came or went.
    pub lmbs: u32,
    /// Ranges in which their memory was handed over: neighbours of one node are one, whatever the
    /// budget of a poll.
    pub ranges: u32,
    /// LMBs that a request by count passed over because something failed.
    pub skipped: u32,
    /// Why the first of these was.
    pub because: Option<Error>,
    /// LMBs that had to go to another node than their own, since memory of it shares their section
    /// (128 MiB).
    pub misplaced: u32,
    /// LMBs that were passed over and are not as they were; see [`Failure::unrestored`].
    pub unrestored: u32,
    /// LMBs that were passed over and are gone for good; see [`Failure::lost`].
    pub lost: u32,
}

/// An LMB that a request could not change, or not change back. See
/// [`Connectors::refused`](crate::Connectors::refused).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its connector; `None` if it has none, which is what was wrong then.
    pub connector: Option<DrcIndex>,
    /// Its frames.
    pub range: PfnRange,
    /// How it is left.
    pub left: Left,
    /// What was refused, and why.
    pub error: Error,
}

/// How an LMB is left that a request could not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// As it was, or it will be when the request has been undone.
    AsItWas,
    /// Not as it was; counted in [`Failure::unrestored`] or [`Summary::unrestored`].
    Unrestored,
    /// Gone for good; counted in [`Failure::lost`] or [`Summary::lost`].
    Lost,
}

/// A request that was not carried out: the machine is as it was, unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Why.
    pub error: Error,
    /// Why the first LMB was passed over, in a request by count.
    pub because: Option<Error>,
    /// LMBs that are not as they were: memory that came and is in use by now, that stayed offline
    /// or is online for something else, or whose connector could not be released.
    pub unrestored: u32,
    /// LMBs that the partition had and does not have any more: they went and could not be had back.
    pub lost: u32,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// This request is open, and is to be polled to its end first.
    InProgress(Request),
    /// The machine is another one than that of the LMBs.
    Elsewhere,
    /// No LMBs are asked for.
    Zero,
    /// There are not so many that could be had.
    NotEnough {
        /// LMBs asked for.
        wanted: u32,
        /// LMBs that could be had.
        available: u32,
    },
    /// No LMB has this connector.
    Unknown(DrcIndex),
    /// The table ends before so many.
    BeyondTable {
        /// The first one's connector.
        first: DrcIndex,
        /// How many were asked for.
        count: u32,
        /// How many there are.
        there: u32,
    },
    /// The LMB at this address is not for use, or has no connector.
    Reserved {
        /// Its physical address.
        address: u64,
    },
    /// It is there already.
    Assigned(DrcIndex),
    /// It is not there.
    NotAssigned(DrcIndex),
    /// The hypervisor said no.
    Connector(ConnectorError),
    /// The engine cannot announce the memory.
    Announce(AnnounceError),
    /// The engine cannot add it.
    Add(AddError),
    /// The kernel does not want it online.
    Online(OnlineError),
    /// Something stays in the memory.
    Blocked(Blocker),
    /// A part of the LMB is not online, and a part is.
    Mixed(DrcIndex),
    /// It was online in two zones, which is forgotten when memory goes; now all of it is in one.
    Zones(DrcIndex),
    /// The engine does not know the memory of an LMB that the partition is said to have.
    NotPresent(DrcIndex),
    /// The engine cannot take it offline.
    Offline(OfflineError),
    /// The engine cannot remove it.
    Remove(RemoveError),
    /// The platform did not take the device tree's properties, with this status.
    Update(i32),
    /// The caller turned it round.
    Cancelled,
}

impl Error {
    /// Whether the same request may be carried out later, without anything about it or the machine
    /// being changed by hand: somebody refused for now, or something was in use or short. A
    /// request by count may be, too, if what it passed over was refused for such a reason
    /// ([`Failure::because`]).
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::InProgress(_) => true,
            Error::Connector(error) => !error.stuck && error.what == Wrong::Failed(BUSY),
            Error::Announce(error) => matches!(error, AnnounceError::NoMetadata(_)),
            Error::Add(error) => matches!(
                error,
                AddError::Held(_) | AddError::NoMetadata(_) | AddError::NoTables { .. }
            ),
            Error::Online(error) => {
                matches!(error, OnlineError::Held(_) | OnlineError::Vetoed { .. })
            }
            Error::Blocked(blocker) => blocker.is_temporary(),
            Error::Remove(error) => matches!(error, RemoveError::Held(_)),
            Error::Elsewhere
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

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, because: None, unrestored: 0, lost: 0 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if let Some(because) = self.because {
            write!(f, "; the first that was passed over: {because}")?;
        }
        if self.unrestored > 0 {
            write!(f, "; {} LMBs are not as they were", self.unrestored)?;
        }
        if self.lost > 0 {
            write!(f, "; {} LMBs are lost", self.lost)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InProgress(open) => write!(f, "a request to {open} is open"),
            Error::Elsewhere => f.write_str("the LMBs are another machine's"),
            Error::Zero => f.write_str("no LMBs are asked for"),
            Error::NotEnough { wanted, available } => {
                write!(f, "{wanted} LMBs are asked for and {available} can be had")
            }
            Error::Unknown(index) => write!(f, "no LMB has DRC index {index}"),
            Error::BeyondTable { first, count, there } => {
                write!(f, "{count} LMBs from DRC index {first} on, where there are {there}")
            }
            Error::Reserved { address } => write!(f, "the LMB at {address:#x} is reserved"),
            Error::Assigned(index) => write!(f, "the LMB with DRC index {index} is there already"),
            Error::NotAssigned(index) => write!(f, "the LMB with DRC index {index} is not there"),
            Error::Connector(error) => error.fmt(f),
            Error::Announce(error) => error.fmt(f),
            Error::Add(error) => error.fmt(f),
            Error::Online(error) => error.fmt(f),
            Error::Blocked(blocker) => blocker.fmt(f),
            Error::Mixed(index) => {
                write!(f, "the LMB with DRC index {index} is in part online and in part not")
            }
            Error::Zones(index) => {
                write!(
                    f,
                    "the LMB with DRC index {index} was online in two zones and is in one now"
                )
            }
            Error::NotPresent(index) => {
                write!(f, "the LMB with DRC index {index} is assigned, but its memory is unknown")
            }
            Error::Offline(error) => error.fmt(f),
            Error::Remove(error) => error.fmt(f),
            Error::Update(status) => {
                write!(f, "the device tree's properties were not taken: status {status}")
            }
            Error::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl core::error::Error for Failure {}
impl core::error::Error for Error {}
