//! In which order the hypervisor is asked for one connector (PAPR 13.5.3).
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

use crate::connector_error::{BUSY, Call, ConnectorError, Wrong};
use crate::connectors::{Connectors, LONGEST_LIST};
use crate::property::DrcIndex;

/// States of dr-entity-sense.
const PRESENT: i32 = 1;
const UNUSABLE: i32 = 2;
/// All that there are: empty, present, unusable, exchange, recovery.
const SENSES: core::ops::RangeInclusive<i32> = 0..=4;

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
