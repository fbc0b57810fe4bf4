//! Acquires connectors one by one. Each reports the associativity of its LMB.

use super::{Flow, Machine, OpenRequest, Step};
use crate::connector_error::{Call, ConnectorError};
use crate::connectors::{Connectors, MAX_LIST_LEN};
use crate::exchange::{Exchange, Exchanged};
use crate::outcome::{Error, FinalState, Wait};
use crate::table::Table;
use hotmem::{Map, Platform, State};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Acquires candidates until there are enough of them. While a request is undone, acquires the
    /// connectors that it has released.
    pub(super) fn acquire<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        let position = match self.undo_reason {
            Some(_) => self.next_released(table, machine),
            None if self.candidates.are_taken(table) => None,
            None => self.candidates.next(table),
        };
        let Some(position) = position else {
            if self.undo_reason.is_none() && !self.candidates.are_taken(table) {
                let error = self.candidates.not_enough(table);
                self.fail(error, table, machine);
            } else {
                self.go_to(Step::Add);
            }
            return Flow::Continue;
        };
        let connector = match table.connector(position) {
            Ok(connector) => connector,
            Err(error) => return self.not_acquired(error, position, table, machine),
        };
        let mut list = [0; MAX_LIST_LEN];
        let is_connector_only = table.is_connector_only(position);
        let mut exchange =
            self.exchange.take().unwrap_or(Exchange::acquire(connector, is_connector_only));
        match exchange.continue_calls(machine.connectors, &mut list) {
            Exchanged::Busy(milliseconds) => {
                return match self.wait_for(exchange, milliseconds) {
                    Ok(wait) => Flow::Wait(wait),
                    Err(error) => {
                        self.not_acquired(Error::Connector(error), position, table, machine)
                    }
                };
            }
            Exchanged::Failed(error) => {
                return self.not_acquired(Error::Connector(error), position, table, machine);
            }
            Exchanged::Done(reported) => {
                // An LMB that is restored keeps its node, so its list is ignored.
                if let Some(len) = reported.filter(|_| self.undo_reason.is_none()) {
                    let list = &list[..len];
                    let hint = table.lmb(position.saturating_sub(1)).aa_index;
                    let Some(row) = table.rows.find_or_add(list, hint) else {
                        if let Some(error) = exchange.refuse_list(len) {
                            let error = Error::Connector(error);
                            return self.not_acquired(error, position, table, machine);
                        }
                        self.exchange = Some(exchange);
                        return Flow::Continue;
                    };
                    let (group, bit) = table.group_mut(position);
                    group.reported[bit] = row;
                }
            }
        }
        *steps_left -= 1;
        if self.undo_reason.is_none() {
            self.candidates.set_tried_below(position + 1);
            table.take(position);
        } else {
            self.cursor = position + 1;
        }
        if *steps_left == 0 { Flow::Working } else { Flow::Continue }
    }

    /// Handles an LMB that could not be acquired.
    fn not_acquired<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) -> Flow {
        let is_stuck = matches!(error, Error::Connector(ConnectorError { is_stuck: true, .. }));
        let was_connector_only = table.is_connector_only(position);
        // A connector whose state could not be read is as it was.
        let is_changed = matches!(
            error,
            Error::Connector(ConnectorError { call, .. }) if call != Call::Sense
        );
        table.set_connector_only(position, is_stuck || was_connector_only && !is_changed);
        if self.undo_reason.is_some() {
            self.cursor = position + 1;
            self.report_refused_lmb(FinalState::Lost, error, position, table, machine);
            return Flow::Continue;
        }
        self.candidates.set_tried_below(position + 1);
        let final_state = if is_stuck && !was_connector_only {
            FinalState::Unrestored
        } else {
            FinalState::AsItWas
        };
        self.skip_or_fail(error, final_state, position, table, machine);
        Flow::Continue
    }

    /// Waits for a busy connector. If the caller does not want to wait, undoes the calls that were
    /// made for the connector.
    ///
    /// # Errors
    /// The connector's error, if no call is left to undo, or if the undoing itself is busy and the
    /// caller does not want to wait.
    pub(super) fn wait_for(
        &mut self,
        mut exchange: Exchange,
        milliseconds: u32,
    ) -> Result<Wait, ConnectorError> {
        let connector = exchange.connector();
        if self.skips_waiting()
            && let Some(error) = exchange.give_up()
        {
            return Err(error);
        }
        self.exchange = Some(exchange);
        Ok(Wait::Connector { connector, milliseconds })
    }

    /// Returns the next taken LMB whose memory has been removed already.
    fn next_released<M: Map, C: ?Sized>(
        &mut self,
        table: &Table<'_>,
        machine: &Machine<'_, 'f, P, M, C>,
    ) -> Option<u32> {
        loop {
            let position = self.next(table, |group| group.taken)?;
            let lmb = table.lmb(position).range;
            match machine.hotplug.state_at(lmb.start(), lmb.end()).1 {
                State::Absent | State::Unknown => return Some(position),
                _ => self.cursor = position + 1,
            }
        }
    }
}
