//! Checks that all taken LMBs can be released, before the first is released.

use super::{Flow, Machine, OpenRequest, Step, region};
use crate::connectors::Connectors;
use crate::exchange::{Exchange, Exchanged};
use crate::outcome::{Error, FinalState};
use crate::table::Table;
use hotmem::{Map, PfnRange, Platform};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Checks that the engine allows the removal of the taken memory, and that each connector is in
    /// a state from which it can be released. Changes nothing.
    pub(super) fn check<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        let Some(position) = self.next(table, |group| group.taken) else {
            self.go_to(Step::ReleaseConnectors);
            self.cursor = self.span().start;
            return Flow::Continue;
        };
        self.cursor = position;
        if position >= self.checked_below {
            match self.check_memory(
                position,
                (*steps_left).min(self.max_range_lmbs),
                table,
                machine,
            ) {
                Ok(end) => (self.checked_below, self.max_range_lmbs) = (end, u32::MAX),
                Err((_, lmbs)) if lmbs > 1 => {
                    self.max_range_lmbs = lmbs / 2;
                    return Flow::Continue;
                }
                Err((error, _)) => {
                    self.skip_or_fail(error, FinalState::AsItWas, position, table, machine);
                    return Flow::Continue;
                }
            }
        }
        let connector = match table.connector(position) {
            Ok(connector) => connector,
            Err(error) => {
                self.skip_or_fail(error, FinalState::AsItWas, position, table, machine);
                return Flow::Continue;
            }
        };
        let mut exchange = self.exchange.take().unwrap_or(Exchange::release(connector));
        let refused = match exchange.check_present(machine.connectors) {
            Exchanged::Done(_) => None,
            Exchanged::Failed(error) => Some(error),
            Exchanged::Busy(milliseconds) => match self.wait_for(exchange, milliseconds) {
                Ok(wait) => return Flow::Wait(wait),
                Err(error) => Some(error),
            },
        };
        if let Some(error) = refused {
            self.skip_or_fail(
                Error::Connector(error),
                FinalState::AsItWas,
                position,
                table,
                machine,
            );
            return Flow::Continue;
        }
        self.cursor = position + 1;
        *steps_left -= 1;
        if *steps_left == 0 { Flow::Working } else { Flow::Continue }
    }

    /// Checks that the engine allows the removal of the stretch at `position`: of neighbouring LMBs
    /// of one node, at most `limit`. Returns the position after them.
    ///
    /// # Errors
    /// The error of the engine, and how many LMBs it was asked to remove.
    fn check_memory<M: Map, C: ?Sized>(
        &self,
        position: u32,
        limit: u32,
        table: &Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) -> Result<u32, (Error, u32)> {
        let stretch = table.stretch(position, |group| group.taken, limit);
        let announced = region::region_at(machine.hotplug, stretch.range.start())
            .map_or(PfnRange::EMPTY, |all| all.intersection(stretch.range));
        let run = machine.hotplug.state_at(announced.start(), announced.end()).0;
        let lmbs = table.lmbs_in(run).max(1);
        let removal = machine
            .hotplug
            .prepare_remove(table.part_of(&stretch, lmbs))
            .map_err(|error| (Error::Remove(error), lmbs))?;
        machine.hotplug.abandon_remove(removal, machine.hooks);
        Ok(position + lmbs)
    }
}
