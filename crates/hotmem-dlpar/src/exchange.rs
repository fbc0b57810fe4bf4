//! Makes the sequence of hypervisor calls for one connector (PAPR 13.5.3).
//!
//! An acquisition checks that the LMB's state is *unusable*, makes the LMB *usable*, *unisolates*
//! it, and *configures* it, which reports its associativity. A release checks that the state is
//! *present*, *isolates* the LMB, and makes it *unusable*. If a call fails, the earlier calls are
//! undone. If a release has isolated an LMB and is undone, the LMB is unisolated and configured
//! again.
//!
//! If undoing fails too, the connector is *stuck*. Isolating may have failed because the connector
//! is not configured, which QEMU requires. So the connector is configured once before the exchange
//! ends, and a later removal can isolate it. The table records a stuck connector: a later addition
//! acquires the connector by the calls from *unisolate* on, and a later removal releases it. A
//! removal configures no connector, because QEMU would treat that as the end of a failed removal.

use crate::connector_error::{BUSY, Call, ConnectorError, ConnectorFailure};
use crate::connectors::{Connectors, MAX_LIST_LEN};
use crate::property::DrcIndex;

/// The state of dr-entity-sense in which the partition has the LMB.
const STATE_PRESENT: i32 = 1;
const STATE_UNUSABLE: i32 = 2;
/// All states that dr-entity-sense may report: empty, present, unusable, exchange, recovery.
const SENSE_STATES: core::ops::RangeInclusive<i32> = 0..=4;

/// The acquisition or the release of one connector. It consists of several calls. A call is
/// repeated while the platform is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exchange {
    connector: DrcIndex,
    purpose: Purpose,
    call: Call,
    first_failure: Option<ConnectorError>,
}

/// The goal of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Acquire,
    Release,
}

/// The status of a call.
enum Status {
    Success,
    /// The platform is busy. The call should be repeated after this many milliseconds.
    Busy(u32),
    Failed(i32),
}

/// Returns the delay in milliseconds that a busy status asks for.
pub(crate) fn busy_delay(status: i32) -> Option<u32> {
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

/// The result of one step of an exchange.
pub(crate) enum Exchanged {
    /// All calls succeeded. Contains the length of the associativity list, if an acquisition has
    /// reported one.
    Done(Option<usize>),
    /// The platform is busy. The exchange should be continued after this many milliseconds.
    Busy(u32),
    /// A call failed. The earlier calls are undone, unless [`ConnectorError::is_stuck`] is set.
    Failed(ConnectorError),
}

impl Exchange {
    /// Begins to acquire the connector. `has_connector` says that the partition has had the
    /// connector since an earlier request. Such a connector is usable, and may be isolated or
    /// configured.
    pub(crate) fn acquire(connector: DrcIndex, has_connector: bool) -> Exchange {
        let call = if has_connector { Call::Unisolate } else { Call::Sense };
        Exchange { connector, purpose: Purpose::Acquire, call, first_failure: None }
    }

    /// Begins to release the connector.
    pub(crate) fn release(connector: DrcIndex) -> Exchange {
        Exchange { connector, purpose: Purpose::Release, call: Call::Sense, first_failure: None }
    }

    pub(crate) fn connector(&self) -> DrcIndex {
        self.connector
    }

    /// Returns whether a call has failed and the earlier calls are being undone.
    pub(crate) fn is_undoing(&self) -> bool {
        self.first_failure.is_some()
    }

    /// Treats the busy call as failed, for a caller that does not wait. Returns the error if no
    /// call is left to undo.
    pub(crate) fn give_up(&mut self) -> Option<ConnectorError> {
        self.fail(ConnectorFailure::Failed(BUSY))
    }

    /// Checks that the connector can be released: its state must be *present*. Changes nothing.
    pub(crate) fn check_present(
        &mut self,
        connectors: &mut (impl Connectors + ?Sized),
    ) -> Exchanged {
        match self.sense(connectors) {
            Ok(()) => Exchanged::Done(None),
            Err(exchanged) => exchanged,
        }
    }

    /// Continues the exchange until it ends or the platform is busy. An acquisition writes the
    /// associativity list to `list`.
    pub(crate) fn continue_calls(
        &mut self,
        connectors: &mut (impl Connectors + ?Sized),
        list: &mut [u32; MAX_LIST_LEN],
    ) -> Exchanged {
        loop {
            let mut reported = None;
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
                    (status, reported) = connectors.configure(self.connector, list);
                    status
                }
            };
            match Status::of(status) {
                Status::Busy(milliseconds) => return Exchanged::Busy(milliseconds),
                Status::Failed(status) => {
                    if let Some(error) = self.fail(ConnectorFailure::Failed(status)) {
                        return Exchanged::Failed(error);
                    }
                    continue;
                }
                Status::Success => {}
            }
            if let Some(len) =
                reported.filter(|&len| self.purpose == Purpose::Acquire && len > list.len())
            {
                if let Some(error) = self.fail(ConnectorFailure::List(len)) {
                    return Exchanged::Failed(error);
                }
                continue;
            }
            let undone = self.first_failure.map(Exchanged::Failed);
            self.call = match (self.call, self.purpose) {
                (Call::Sense, Purpose::Acquire) => Call::SetUsable,
                (Call::Sense, Purpose::Release) => Call::Isolate,
                (Call::SetUsable, _) => Call::Unisolate,
                (Call::SetUnusable, _) => return undone.unwrap_or(Exchanged::Done(None)),
                // A release that is undone configures the connector again, too, because it was
                // isolated.
                (Call::Unisolate, _) => Call::Configure,
                (Call::Configure, _) => return undone.unwrap_or(Exchanged::Done(reported)),
                (Call::Isolate, _) => Call::SetUnusable,
            };
        }
    }

    /// Reads the connector's state.
    ///
    /// # Errors
    /// [`Exchanged::Failed`] if the call fails or the state is not the one in which the exchange
    /// begins, [`Exchanged::Busy`] if the platform is busy.
    fn sense(&mut self, connectors: &mut (impl Connectors + ?Sized)) -> Result<(), Exchanged> {
        let required_state = match self.purpose {
            Purpose::Acquire => STATE_UNUSABLE,
            Purpose::Release => STATE_PRESENT,
        };
        let (status, state) = connectors.entity_sense(self.connector);
        let failure = if SENSE_STATES.contains(&state) {
            ConnectorFailure::State
        } else {
            ConnectorFailure::NoState
        };
        match Status::of(status) {
            Status::Success if state == required_state => Ok(()),
            Status::Success => Err(Exchanged::Failed(self.error(failure(state)))),
            Status::Busy(milliseconds) => Err(Exchanged::Busy(milliseconds)),
            Status::Failed(status) => {
                Err(Exchanged::Failed(self.error(ConnectorFailure::Failed(status))))
            }
        }
    }

    /// Refuses the reported list, and starts to undo the acquisition. Returns the error if no call
    /// is left to undo.
    pub(crate) fn refuse_list(&mut self, len: usize) -> Option<ConnectorError> {
        self.fail(ConnectorFailure::List(len))
    }

    fn error(&self, failure: ConnectorFailure) -> ConnectorError {
        ConnectorError { connector: self.connector, call: self.call, failure, is_stuck: false }
    }

    /// Records a failure, and starts to undo the earlier calls. Returns the error if no call is
    /// left to undo.
    fn fail(&mut self, failure: ConnectorFailure) -> Option<ConnectorError> {
        if let Some(first) = self.first_failure {
            let stuck = ConnectorError { is_stuck: true, ..first };
            if self.call == Call::Isolate {
                // Isolating may have failed because the connector is not configured. Configure it,
                // so that a later removal can isolate it.
                (self.first_failure, self.call) = (Some(stuck), Call::Configure);
                return None;
            }
            return Some(stuck);
        }
        let error = self.error(failure);
        self.call = match self.call {
            // Nothing has been changed yet.
            Call::Sense | Call::SetUsable | Call::Isolate => return Some(error),
            Call::Unisolate => Call::SetUnusable,
            Call::Configure => Call::Isolate,
            Call::SetUnusable => Call::Unisolate,
        };
        self.first_failure = Some(error);
        None
    }
}
