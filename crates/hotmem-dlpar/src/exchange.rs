//! Makes the sequence of hypervisor calls for one connector (PAPR 13.5.3).
//!
//! An acquisition checks that the LMB's state is *unusable*, makes the LMB *usable*, *unisolates*
//! it, and *configures* it, which reports its associativity. A release checks that the state is
//! *present*, *isolates* the LMB, and makes it *unusable*. If a call fails, or stays busy until the
//! caller gives up, that call and the earlier ones are undone, because the platform may have carried
//! it out. If a release has isolated an LMB and is undone, the LMB is unisolated and configured again.
//!
//! If undoing fails too, the connector is *stuck*. Isolating may have failed because the connector
//! is not configured, which QEMU requires. So the connector is configured once before the exchange
//! ends, and a later removal can isolate it. The table records a stuck connector, whose state is not
//! known: a later addition or removal reads the state, and makes the calls that are left. A removal
//! configures no connector, because QEMU would treat that as the end of a failed removal.

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
    /// Acquire a connector that the partition may have had since an earlier request.
    AcquireAgain,
    Release,
    /// Release a connector that the partition may have had since an earlier request.
    ReleaseAgain,
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

/// Returns whether the partition has this connector, or may have it because the platform does not
/// say. If the partition may have acquired the connector for memory that it does not have, configures
/// it once, so that a later removal can isolate it: its acquisition may have ended before.
pub(crate) fn may_have(
    connectors: &mut (impl Connectors + ?Sized),
    connector: DrcIndex,
    may_be_acquired: bool,
) -> bool {
    let (status, state) = connectors.entity_sense(connector);
    if may_be_acquired && (status, state) == (0, STATE_PRESENT) {
        // A failure is ignored: an isolated connector cannot be configured, and needs not to be.
        connectors.configure(connector, &mut [0; MAX_LIST_LEN]);
    }
    (status, state) != (0, STATE_UNUSABLE)
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
    /// Begins to acquire the connector. `may_have_connector` says that the partition may have had
    /// the connector since an earlier request. Such a connector is usable or not, and may be
    /// isolated or configured.
    pub(crate) fn acquire(connector: DrcIndex, may_have_connector: bool) -> Exchange {
        let purpose = if may_have_connector { Purpose::AcquireAgain } else { Purpose::Acquire };
        Exchange { connector, purpose, call: Call::Sense, first_failure: None }
    }

    /// Begins to release the connector, which the partition has.
    pub(crate) fn release(connector: DrcIndex) -> Exchange {
        Exchange { connector, purpose: Purpose::Release, call: Call::Sense, first_failure: None }
    }

    /// Begins to release a connector that the partition may have had since an earlier request. If it
    /// does not have the connector, there is nothing to do.
    pub(crate) fn release_again(connector: DrcIndex) -> Exchange {
        let purpose = Purpose::ReleaseAgain;
        Exchange { connector, purpose, call: Call::Sense, first_failure: None }
    }

    pub(crate) fn connector(&self) -> DrcIndex {
        self.connector
    }

    fn acquires(&self) -> bool {
        matches!(self.purpose, Purpose::Acquire | Purpose::AcquireAgain)
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
            Ok(_) => Exchanged::Done(None),
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
                    Ok(next) => {
                        self.call = next;
                        continue;
                    }
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
            if let Some(len) = reported.filter(|&len| self.acquires() && len > list.len()) {
                if let Some(error) = self.fail(ConnectorFailure::List(len)) {
                    return Exchanged::Failed(error);
                }
                continue;
            }
            let undone = self.first_failure.map(Exchanged::Failed);
            self.call = match self.call {
                Call::Sense | Call::SetUsable => Call::Unisolate,
                Call::SetUnusable => return undone.unwrap_or(Exchanged::Done(None)),
                // A release that is undone configures the connector again, too, because it was
                // isolated.
                Call::Unisolate => Call::Configure,
                Call::Configure => return undone.unwrap_or(Exchanged::Done(reported)),
                Call::Isolate => Call::SetUnusable,
            };
        }
    }

    /// Reads the connector's state. Returns the call that comes next.
    ///
    /// # Errors
    /// [`Exchanged::Failed`] if the call fails or the state is not one in which the exchange
    /// begins, [`Exchanged::Busy`] if the platform is busy, [`Exchanged::Done`] if no call is left.
    fn sense(&mut self, connectors: &mut (impl Connectors + ?Sized)) -> Result<Call, Exchanged> {
        let (status, state) = connectors.entity_sense(self.connector);
        let failure = if SENSE_STATES.contains(&state) {
            ConnectorFailure::State
        } else {
            ConnectorFailure::NoState
        };
        match (Status::of(status), state, self.purpose) {
            (Status::Success, STATE_UNUSABLE, Purpose::Acquire | Purpose::AcquireAgain) => {
                Ok(Call::SetUsable)
            }
            (Status::Success, STATE_PRESENT, Purpose::AcquireAgain) => Ok(Call::Unisolate),
            (Status::Success, STATE_PRESENT, Purpose::Release | Purpose::ReleaseAgain) => {
                Ok(Call::Isolate)
            }
            (Status::Success, STATE_UNUSABLE, Purpose::ReleaseAgain) => Err(Exchanged::Done(None)),
            (Status::Success, ..) => Err(Exchanged::Failed(self.error(failure(state)))),
            (Status::Busy(milliseconds), ..) => Err(Exchanged::Busy(milliseconds)),
            (Status::Failed(status), ..) => {
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

    /// Records a failure, and starts to undo the calls, from the failed one on: the platform may have
    /// carried it out, and a call whose effect is there already succeeds. Returns the error if no
    /// call is left to undo.
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
            Call::Sense => return Some(error),
            // A platform refuses to isolate memory that the host has not asked back. It has
            // changed nothing then.
            Call::Isolate if failure != ConnectorFailure::Failed(BUSY) => return Some(error),
            Call::Isolate => Call::Unisolate,
            Call::SetUnusable => Call::SetUsable,
            Call::SetUsable => Call::SetUnusable,
            Call::Unisolate | Call::Configure => Call::Isolate,
        };
        self.first_failure = Some(error);
        None
    }
}
