//! Reports to the platform that memory stays although the platform has requested its removal.

use super::{Flow, Machine, OpenRequest, Step};
use crate::connectors::Connectors;
use crate::description::{Change, LmbSelection};
use crate::exchange;
use crate::outcome::Wait;
use crate::table::Table;
use hotmem::{Map, Platform};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Unisolates an LMB that stays. This changes nothing in the partition, but tells the platform
    /// that the removal has failed. Without this report QEMU waits for the removal until the
    /// machine is reset.
    ///
    /// Does nothing if the partition has lost one of the requested LMBs: the platform has that part
    /// of the memory, and QEMU 7.2 would abort when the host requests the memory again. Does
    /// nothing for requests by count, because the platform has not named any LMBs.
    pub(super) fn report_failure<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) -> Flow {
        let by_count = matches!(self.request.selection, LmbSelection::Count(_));
        let is_lmb_lost = table
            .next_in(self.span(), |group| !(group.assigned | group.connector_only) & group.eligible)
            .is_some();
        self.step = Step::Done;
        if self.request.change == Change::Add || by_count || is_lmb_lost {
            return Flow::Continue;
        }
        let Ok(connector) = table.connector(self.span().start) else { return Flow::Continue };
        let status = machine.connectors.set_isolation(connector, false);
        // A failure is ignored: such a platform does not support the report.
        if let Some(milliseconds) = exchange::busy_delay(status)
            && !self.skips_waiting()
        {
            self.step = Step::ReportFailure;
            return Flow::Wait(Wait::Connector { connector, milliseconds });
        }
        Flow::Continue
    }
}
