//! Removes offline memory: releases each connector, and commits the removal that the engine has
//! prepared.

use super::taken::FormerState;
use super::{Flow, Machine, OpenRequest, Step, region};
use crate::connector_error::ConnectorError;
use crate::connectors::{Connectors, MAX_LIST_LEN};
use crate::description::Change;
use crate::exchange::{Exchange, Exchanged};
use crate::outcome::{Error, FinalState};
use crate::table::Table;
use hotmem::{AddRequest, Map, PfnRange, Platform, State};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Releases the taken LMBs.
    pub(super) fn release<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        if self.exchange.is_none() && self.removal.is_none() {
            let next = match self.evicting_lmb {
                Some((position, _)) => Some(position),
                None => self.next(table, |group| group.taken),
            };
            let Some(position) = next else {
                self.finish_releasing(table, machine);
                return Flow::Continue;
            };
            self.cursor = position;
            match self.prepare(position, (*steps_left).min(self.max_range_lmbs), table, machine) {
                Ok(true) => {}
                Ok(false) => return Flow::Continue,
                // The engine refuses one of these LMBs, but does not say which.
                Err((_, lmbs)) if lmbs > 1 => {
                    self.max_range_lmbs = lmbs / 2;
                    return Flow::Continue;
                }
                Err((error, _)) => {
                    self.max_range_lmbs = u32::MAX;
                    self.not_released(error, position, table, machine);
                    return Flow::Continue;
                }
            }
        }
        let position = self.cursor;
        let connector = match table.connector(position) {
            Ok(connector) => connector,
            Err(error) => {
                self.commit_released(table, machine);
                self.not_released(error, position, table, machine);
                return Flow::Continue;
            }
        };
        let mut exchange = self.exchange.take().unwrap_or(Exchange::release(connector));
        match exchange.continue_calls(machine.connectors, &mut [0; MAX_LIST_LEN]) {
            Exchanged::Busy(milliseconds) => match self.wait_for(exchange, milliseconds) {
                Ok(wait) => return Flow::Wait(wait),
                Err(error) => self.refused(error, position, table, machine),
            },
            Exchanged::Failed(error) => self.refused(error, position, table, machine),
            Exchanged::Done(_) => {
                table.set_connector_only(position, false);
                self.cursor = position + 1;
                self.commit_if_last(position, table, machine);
                self.continue_after_eviction(position, table);
            }
        }
        *steps_left -= 1;
        if *steps_left == 0 { Flow::Working } else { Flow::Continue }
    }

    /// Prepares the removal of at most `limit` neighbouring LMBs. Returns `false` if there is
    /// nothing to release here.
    ///
    /// # Errors
    /// The engine's error, and the number of LMBs whose removal was requested.
    fn prepare<M: Map, C: ?Sized>(
        &mut self,
        position: u32,
        limit: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) -> Result<bool, (Error, u32)> {
        let limit = if self.evicting_lmb.is_some() { 1 } else { limit };
        let stretch = table.stretch(position, |group| group.taken, limit);
        let announced = region::region_at(machine.hotplug, stretch.range.start())
            .map_or(PfnRange::EMPTY, |all| all.intersection(stretch.range));
        let (run, state) = machine.hotplug.state_at(announced.start(), announced.end());
        match state {
            State::Absent | State::Unknown => {
                let acquired = self.request.change == Change::Add;
                if !acquired {
                    // The request has released these LMBs in an earlier round.
                    self.cursor = position + table.lmbs_in(run).max(1);
                }
                Ok(acquired)
            }
            State::Device
            | State::Offline
            | State::Removing
            | State::Online
            | State::OnlineMovable => {
                let lmbs = table.lmbs_in(run).max(1);
                let range = table.part_of(&stretch, lmbs);
                let removal = machine.hotplug.prepare_remove(range);
                self.removal = Some(removal.map_err(|error| (Error::Remove(error), lmbs))?);
                self.max_range_lmbs = u32::MAX;
                if self.request.change == Change::Remove && self.undo_reason.is_none() {
                    let node =
                        stretch.node.unwrap_or_else(|| region::default_node(machine.hotplug));
                    self.count_range(range, node);
                }
                Ok(true)
            }
        }
    }

    /// Commits the part of the prepared removal below the cursor. The rest stays offline.
    pub(super) fn commit_released<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        // Committing and abandoning cannot fail: the removal was prepared on this instance, as `poll`
        // has checked.
        let Some(removal) = self.removal.take() else { return };
        let end = match self.cursor.checked_sub(1) {
            Some(last) => table.lmb(last).range.end(),
            None => removal.range().start(),
        };
        let (released, rest) = match removal.split_at(end) {
            Ok(parts) => parts,
            // The removal cannot be split. So all of it is committed, and the part that stays is added
            // again, because its descriptors were removed. Its poisoned frames stay poisoned.
            Err(removal) => {
                let stays = removal.range().split_at(end).1;
                let node = machine.hotplug.frames().node_of(stays.start());
                machine.hotplug.commit_remove_except(removal, stays);
                let described = machine.hotplug.add(AddRequest { node, ..stays.into() });
                // If the request adds memory, this memory is about to be released anyway, so it does no
                // harm that it is absent.
                if let Err(error) = described
                    && self.request.change == Change::Remove
                {
                    let first = self.cursor;
                    for position in first..first + table.lmbs_in(stays) {
                        self.report_refused_lmb(
                            FinalState::Unrestored,
                            Error::Add(error),
                            position,
                            table,
                            machine,
                        );
                        table.clear_taken(position);
                    }
                }
                return;
            }
        };
        if !released.range().is_empty() {
            machine.hotplug.commit_remove(released);
        }
        if !rest.range().is_empty() {
            machine.hotplug.abandon_remove(rest, machine.hooks);
        }
    }

    /// Handles a connector that could not be released.
    fn refused<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: ConnectorError,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        let stays = self.request.change == Change::Remove && !error.is_stuck;
        if stays {
            self.commit_released(table, machine);
            self.not_released(Error::Connector(error), position, table, machine);
            return;
        }
        // The LMB is lost. If an addition is being undone, its memory is removed already, and its
        // connector cannot be released. If the request removes memory, its connector stays isolated.
        self.cursor = position + 1;
        self.commit_if_last(position, table, machine);
        table.set_connector_only(position, true);
        if self.request.change == Change::Add {
            self.report_refused_lmb(
                FinalState::Unrestored,
                Error::Connector(error),
                position,
                table,
                machine,
            );
            self.continue_after_eviction(position, table);
        } else {
            self.skip_or_fail(Error::Connector(error), FinalState::Lost, position, table, machine);
        }
    }

    /// Commits the prepared removal if this is its last LMB.
    fn commit_if_last<M: Map, C: Connectors + ?Sized>(
        &mut self,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        let end = table.lmb(position).range.end();
        if self.removal.as_ref().is_some_and(|removal| removal.range().end() == end) {
            self.commit_released(table, machine);
        }
    }

    /// Handles an LMB whose memory is offline and stays with the partition.
    fn not_released<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        self.cursor = position + 1;
        if self.request.change == Change::Add {
            // Memory that the engine does not remove stays.
            table.assign(position, true);
            self.report_refused_lmb(FinalState::Unrestored, error, position, table, machine);
            match self.evicting_lmb {
                Some(_) => self.continue_after_eviction(position, table),
                None => table.clear_taken(position),
            }
            return;
        }
        self.skip_or_fail(error, FinalState::AsItWas, position, table, machine);
        if self.undo_reason.is_none() && table.is_taken(position) {
            if table.former_state(position) != FormerState::Offline {
                self.online_again(position, table, machine);
            }
            table.clear_taken(position);
        }
    }

    /// Continues with the other LMBs after an eviction.
    fn continue_after_eviction(&mut self, position: u32, table: &mut Table<'_>) {
        if let Some((_, step)) = self.evicting_lmb.take() {
            table.clear_taken(position);
            (self.step, self.cursor) = (step, position + 1);
        }
    }

    fn finish_releasing<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        self.commit_released(table, machine);
        if self.undo_reason.is_some() {
            self.step = Step::Done;
        } else {
            self.go_on_with(table, Step::Update, Step::Offline);
        }
    }
}
