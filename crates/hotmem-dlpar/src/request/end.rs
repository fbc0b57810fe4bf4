//! Ends a request: updates the device tree and clears the marks of the taken LMBs.

use super::{Flow, Machine, OpenRequest, Step, log_lines};
use crate::associativity::NO_ROW;
use crate::connectors::Connectors;
use crate::description::Change;
use crate::exchange;
use crate::outcome::{Error, Failure, Progress, Summary, Wait};
use crate::table::{Group, Table};
use hotmem::{Map, Platform};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Writes the new properties to the device tree, the last step of a request.
    pub(super) fn update<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) -> Flow {
        let assigning = self.request.change == Change::Add;
        if table.taken_lmbs > 0 {
            let memory = table.dynamic_memory_after(assigning);
            let arrays = table.rows.has_grown().then(|| table.lookup_arrays());
            let status = machine.connectors.update(memory, arrays);
            if let Some(milliseconds) = exchange::busy_delay(status) {
                return Flow::Wait(Wait::Update { milliseconds });
            }
            if status != 0 {
                self.fail(Error::Update(status), table, machine);
                return Flow::Continue;
            }
        }
        self.summary.lmbs += table.taken_lmbs;
        log_lines::log_each_lmb(table, self.span(), self.request.change);
        for group in table.taken_groups(self.span()) {
            let taken = group.taken;
            for bit in (0..64).filter(|bit| taken >> bit & 1 != 0 && assigning) {
                if group.reported[bit] != NO_ROW {
                    group.aa_index[bit] = group.reported[bit];
                }
            }
            group.assigned =
                if assigning { group.assigned | taken } else { group.assigned & !taken };
            group.connector_only &= !taken;
        }
        table.rows.note_written();
        self.step = Step::Done;
        Flow::Continue
    }

    /// Clears the marks of the taken LMBs and returns the result.
    pub(super) fn finish(&mut self, table: &mut Table<'_>) -> Progress {
        let result = match self.undo_reason.take() {
            None => Ok(Summary { first_skip_error: self.first_skip_error, ..self.summary }),
            Some(error) => Err(Failure {
                error,
                first_skip_error: self.first_skip_error,
                unrestored: self.summary.unrestored,
                lost: self.summary.lost,
            }),
        };
        for group in table.taken_groups(self.span()) {
            (group.taken, group.was_online, group.was_movable, group.was_mixed) = (0, 0, 0, 0);
            group.reported = Group::EMPTY.reported;
        }
        table.taken_lmbs = 0;
        // An LMB that was not restored may refer to a new row of the lookup arrays, so the new rows
        // are dropped only if all LMBs were restored.
        if result.is_err() && self.summary.unrestored == 0 {
            table.rows.drop_new_rows();
        }
        log_lines::log_request(self.request, table.lmb_size, &result);
        Progress::Ready(result)
    }
}
