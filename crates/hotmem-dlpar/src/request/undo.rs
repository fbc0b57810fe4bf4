//! Starts to undo a request that was cancelled or has failed.

use super::cancel::Cancellation;
use super::{Machine, OpenRequest, Step, log_lines};
use crate::connectors::Connectors;
use crate::description::{Change, LmbSelection};
use crate::outcome::{Error, FinalState, RefusedLmb};
use crate::table::Table;
use hotmem::{Map, Platform};

impl<'f, P: Platform> OpenRequest<'f, P> {
    pub(super) fn cancel(&mut self) {
        self.cancellation.request();
    }

    /// Returns whether the request was cancelled and can be undone now, because no call has to be
    /// completed first.
    pub(super) fn can_start_undoing(&mut self) -> bool {
        if !self.cancellation.is_requested()
            || matches!(self.step, Step::ReportFailure | Step::Done)
        {
            return false;
        }
        if let Some(exchange) = &mut self.exchange
            && self.cancellation.begin_with_connector()
        {
            // First undo the calls for this connector, which may take several polls.
            if !exchange.is_undoing() && exchange.give_up().is_some() {
                self.exchange = None;
            }
        }
        self.exchange.is_none()
    }

    /// Returns whether the caller has cancelled again, and so does not want to wait. Each cancellation
    /// ends one wait.
    pub(super) fn skips_waiting(&mut self) -> bool {
        self.cancellation.skips_waiting(self.undo_reason.is_some())
    }

    /// Skips an LMB in a request by count, and fails any other request.
    pub(super) fn skip_or_fail<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        final_state: FinalState,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        self.report_refused_lmb(final_state, error, position, table, machine);
        if self.cancellation.is_requested() {
            self.fail(Error::Cancelled, table, machine);
        } else if matches!(self.request.selection, LmbSelection::Count(_)) {
            self.summary.skipped += 1;
            self.first_skip_error.get_or_insert(error);
        } else {
            self.fail(error, table, machine);
        }
    }

    /// Counts an LMB that the request could not change or restore, and reports the reason to the
    /// platform and the log.
    pub(super) fn report_refused_lmb<M: Map, C: Connectors + ?Sized>(
        &mut self,
        final_state: FinalState,
        error: Error,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        let lmb = table.lmb(position);
        match final_state {
            FinalState::AsItWas => {}
            FinalState::Unrestored => self.summary.unrestored += 1,
            FinalState::Lost => {
                debug_assert_eq!(self.request.change, Change::Remove);
                table.clear_taken(position);
                table.assign(position, false);
                self.summary.lost += 1;
            }
        }
        let refused = RefusedLmb { connector: lmb.drc_index, range: lmb.range, final_state, error };
        log_lines::log_refused(&refused);
        machine.connectors.refused(&refused);
    }

    /// Starts to undo the request.
    pub(super) fn fail<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        if let Some(stretch) = self.going_offline.take() {
            stretch.cancel(machine);
        }
        self.commit_released(table, machine);
        self.blocked_lmb = None;
        self.evicting_lmb = None;
        self.resume_adding = None;
        self.undo_reason = Some(error);
        self.cancellation = Cancellation::default();
        self.go_to(match self.request.change {
            Change::Add => Step::Offline,
            Change::Remove => Step::Acquire,
        });
    }
}
