//! What the hypervisor is asked, and in which order for one connector (PAPR 13.5.3).
//!
//! An LMB is acquired by these calls: is it *unusable* (not ours)? → make it *usable* → *unisolate*
//! it → *configure* it, which tells its associativity. It is released by these: is it *present*? →
//! *isolate* it → make it *unusable*. When a call fails, those before it are undone; an LMB that was
//! isolated and stays is unisolated and configured again.
//!
//! Where undoing fails too, the connector is *stuck*: QEMU refuses to isolate one that is not
//! configured, so that is tried once more. The table remembers the connector: a later addition
//! acquires it from *unisolate* on, a later removal releases it. A removal configures nothing: QEMU
//! takes that for a refusal.

use crate::property::DrcIndex;
use crate::request::Refused;
use crate::write::Written;
use core::fmt;

/// The hypervisor's side of dynamic memory: RTAS calls, as thin as they are.
///
/// A reply is a status as RTAS gives it: 0 is success, [`BUSY`] and 9900 to 9905 ask for another
/// try, anything else is a failure. Called from within [`Dlpar::poll`](crate::Dlpar::poll).
pub trait Connectors {
    /// `get-sensor-state` of dr-entity-sense (9003): status and state.
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32);

    /// `set-indicator` of allocation-state (9003): `usable` gives the memory to the partition.
    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32;

    /// `set-indicator` of isolation-state (9001): the partition can use the memory, or cannot.
    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32;

    /// `ibm,configure-connector`: the LMB's `ibm,associativity` without its length, and how many
    /// entries were put into `list`. `None`: the platform has nothing to say beyond the property.
    ///
    /// The call is repeated with one work area until its status is 0 or an error, whatever the
    /// caller needs of the answer: before that, the connector is not configured, and a platform
    /// refuses to isolate it (QEMU with -3), so that its LMB can never be removed. Where the
    /// platform is busy half-way, this returns that status and goes on with the same work area when
    /// it is called again.
    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; LONGEST_LIST],
    ) -> (i32, Option<usize>);

    /// Takes the device tree's new properties: once in a request that succeeds, as its last step.
    /// A failure undoes the request. `arrays` is there if connectors named lists that the device
    /// tree does not have.
    fn update(&mut self, memory: Written<'_>, arrays: Option<Written<'_>>) -> i32;

    /// Is told of each LMB that a request passes over, cannot undo or loses, and why. A summary has
    /// the numbers of these only.
    fn refused(&mut self, refused: &Refused) {
        let _ = refused;
    }
}

/// The longest associativity list that is understood; platforms of today have four entries.
pub const LONGEST_LIST: usize = 16;

/// Status: not yet, ask again.
pub const BUSY: i32 = -2;

/// States of dr-entity-sense.
const PRESENT: i32 = 1;
const UNUSABLE: i32 = 2;
/// All that there are: empty, present, unusable, exchange, recovery.
const SENSES: core::ops::RangeInclusive<i32> = 0..=4;

/// A call for one connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Its state is asked for.
    Sense,
    /// Its memory becomes the partition's.
    SetUsable,
    /// Its memory can be used.
    Unisolate,
    /// Its associativity is asked for.
    Configure,
    /// Its memory can no longer be used.
    Isolate,
    /// Its memory is the partition's no longer.
    SetUnusable,
}

/// What went wrong with a connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectorError {
    /// Which one.
    pub connector: DrcIndex,
    /// In which call.
    pub call: Call,
    /// What.
    pub what: Wrong,
    /// The calls before it could not be undone: the connector is in neither state. A later request
    /// for its LMB goes on from there.
    pub stuck: bool,
}

/// What a platform can answer that is no success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// This status.
    Failed(i32),
    /// It is in this state, which does not allow the request.
    State(i32),
    /// This is no state of a connector.
    NoState(i32),
    /// The associativity list is longer than it can be, or no list of the lookup arrays and there
    /// is no room for it there.
    List(usize),
}

/// What is asked for, for one connector: a few calls, of which each may have to be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exchange {
    connector: DrcIndex,
    aim: Aim,
    call: Call,
    failed: Option<ConnectorError>,
}

/// What an exchange leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Aim {
    Acquire,
    Release,
}

/// The status of a call.
enum Status {
    Success,
    /// Try again, after so many milliseconds.
    Busy(u32),
    Failed(i32),
}

/// How long a busy status asks for, in milliseconds.
pub(crate) fn wait(status: i32) -> Option<u32> {
    match Status::of(status) {
        Status::Busy(milliseconds) => Some(milliseconds),
        Status::Success | Status::Failed(_) => None,
    }
}

impl Status {
    fn of(raw: i32) -> Status {
        match raw {
            0 => Status::Success,
            BUSY => Status::Busy(0),
            9900..=9905 => Status::Busy(10_u32.pow(raw.abs_diff(9900))),
            other => Status::Failed(other),
        }
    }
}

/// How far an exchange has come.
pub(crate) enum Exchanged {
    /// All calls went well; the associativity list, when it was asked for and there is one.
    Done(Option<usize>),
    /// Try again, after so many milliseconds.
    Busy(u32),
    /// A call failed, and those before it are undone unless it says that they could not be.
    Failed(ConnectorError),
}

impl Exchange {
    /// Acquires the connector. One that an earlier request has *kept* is usable; it may be isolated
    /// or not, and configured or not.
    pub(crate) fn acquire(connector: DrcIndex, kept: bool) -> Exchange {
        let call = if kept { Call::Unisolate } else { Call::Sense };
        Exchange { connector, aim: Aim::Acquire, call, failed: None }
    }

    /// Releases the connector.
    pub(crate) fn release(connector: DrcIndex) -> Exchange {
        Exchange { connector, aim: Aim::Release, call: Call::Sense, failed: None }
    }

    pub(crate) fn connector(&self) -> DrcIndex {
        self.connector
    }

    /// Whether a call has failed, and those before it are being undone.
    pub(crate) fn is_undoing(&self) -> bool {
        self.failed.is_some()
    }

    /// The caller does not wait for the call that is busy: it is as if it had failed.
    pub(crate) fn give_up(&mut self) -> Option<ConnectorError> {
        self.fail(Wrong::Failed(BUSY))
    }

    /// Checks that the connector can be released: that its memory is present. Nothing changes.
    pub(crate) fn check_present(
        &mut self,
        connectors: &mut (impl Connectors + ?Sized),
    ) -> Exchanged {
        match self.sense(connectors) {
            Ok(()) => Exchanged::Done(None),
            Err(exchanged) => exchanged,
        }
    }

    /// Goes on, to the end if the platform is not busy. Acquiring fills `list`.
    pub(crate) fn go_on(
        &mut self,
        connectors: &mut (impl Connectors + ?Sized),
        list: &mut [u32; LONGEST_LIST],
    ) -> Exchanged {
        loop {
            let mut told = None;
            let status = match self.call {
                Call::Sense => match self.sense(connectors) {
                    Ok(()) => 0,
                    Err(exchanged) => return exchanged,
                },
                Call::SetUsable => connectors.set_allocation(self.connector, true),
                Call::SetUnusable => connectors.set_allocation(self.connector, false),
                Call::Isolate => connectors.set_isolation(self.connector, true),
                Call::Unisolate => connectors.set_isolation(self.connector, false),
                Call::Configure => {
                    let status;
                    (status, told) = connectors.configure(self.connector, list);
                    status
                }
            };
            match Status::of(status) {
                Status::Busy(milliseconds) => return Exchanged::Busy(milliseconds),
                Status::Failed(status) => {
                    if let Some(error) = self.fail(Wrong::Failed(status)) {
                        return Exchanged::Failed(error);
                    }
                    continue;
                }
                Status::Success => {}
            }
            if let Some(len) = told.filter(|&len| self.aim == Aim::Acquire && len > list.len()) {
                if let Some(error) = self.fail(Wrong::List(len)) {
                    return Exchanged::Failed(error);
                }
                continue;
            }
            let undone = self.failed.map(Exchanged::Failed);
            self.call = match (self.call, self.aim) {
                (Call::Sense, Aim::Acquire) => Call::SetUsable,
                (Call::Sense, Aim::Release) => Call::Isolate,
                (Call::SetUsable, _) => Call::Unisolate,
                (Call::SetUnusable, _) => return undone.unwrap_or(Exchanged::Done(None)),
                // Also where releasing is undone: what was isolated has to be configured anew.
                (Call::Unisolate, _) => Call::Configure,
                (Call::Configure, _) => return undone.unwrap_or(Exchanged::Done(told)),
                (Call::Isolate, _) => Call::SetUnusable,
            };
        }
    }

    /// Asks for the connector's state.
    ///
    /// # Errors
    /// Anything but the state that the exchange begins with: the end of the exchange, or the time
    /// to wait.
    fn sense(&mut self, connectors: &mut (impl Connectors + ?Sized)) -> Result<(), Exchanged> {
        let wanted = match self.aim {
            Aim::Acquire => UNUSABLE,
            Aim::Release => PRESENT,
        };
        let (status, state) = connectors.entity_sense(self.connector);
        let wrong = if SENSES.contains(&state) { Wrong::State } else { Wrong::NoState };
        match Status::of(status) {
            Status::Success if state == wanted => Ok(()),
            Status::Success => Err(Exchanged::Failed(self.error(wrong(state)))),
            Status::Busy(milliseconds) => Err(Exchanged::Busy(milliseconds)),
            Status::Failed(status) => Err(Exchanged::Failed(self.error(Wrong::Failed(status)))),
        }
    }

    /// The list that was told is of no use: acquiring is undone. The error, if that is over.
    pub(crate) fn refuse_list(&mut self, len: usize) -> Option<ConnectorError> {
        self.fail(Wrong::List(len))
    }

    fn error(&self, what: Wrong) -> ConnectorError {
        ConnectorError { connector: self.connector, call: self.call, what, stuck: false }
    }

    /// Notes a failure and turns to undoing; the error, if there is nothing (more) to be undone.
    fn fail(&mut self, what: Wrong) -> Option<ConnectorError> {
        if let Some(first) = self.failed {
            let stuck = ConnectorError { stuck: true, ..first };
            if self.call == Call::Isolate {
                // Perhaps because it is not configured. Once it is, a removal can isolate it.
                (self.failed, self.call) = (Some(stuck), Call::Configure);
                return None;
            }
            return Some(stuck);
        }
        let error = self.error(what);
        self.call = match self.call {
            // Nothing was done yet.
            Call::Sense | Call::SetUsable | Call::Isolate => return Some(error),
            Call::Unisolate => Call::SetUnusable,
            Call::Configure => Call::Isolate,
            Call::SetUnusable => Call::Unisolate,
        };
        self.failed = Some(error);
        None
    }
}

impl fmt::Display for ConnectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = match self.call {
            Call::Sense => "dr-entity-sense",
            Call::SetUsable => "set usable",
            Call::Unisolate => "unisolate",
            Call::Configure => "configure-connector",
            Call::Isolate => "isolate",
            Call::SetUnusable => "set unusable",
        };
        write!(f, "connector {}: {call}: ", self.connector)?;
        match self.what {
            Wrong::Failed(BUSY) => f.write_str("busy for too long")?,
            Wrong::Failed(status) => write!(f, "status {status}")?,
            Wrong::State(state) => write!(f, "in state {state}")?,
            Wrong::NoState(state) => write!(f, "says {state}, which is no state")?,
            Wrong::List(len) => write!(f, "no room for an associativity list of {len} entries")?,
        }
        if self.stuck { f.write_str("; could not be undone") } else { Ok(()) }
    }
}

impl core::error::Error for ConnectorError {}
