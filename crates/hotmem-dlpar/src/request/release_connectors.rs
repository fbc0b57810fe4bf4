//! Releases connectors without memory. An earlier request has acquired them and then failed, and
//! the platform did not take them back, or did not answer. QEMU takes connectors back only during a
//! removal that it has requested.

use super::{Flow, Machine, OpenRequest, Step};
use crate::connectors::{Connectors, MAX_LIST_LEN};
use crate::exchange::{Exchange, Exchanged};
use crate::outcome::{Error, FinalState};
use crate::table::Table;
use hotmem::{Map, Platform};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Releases the connectors without memory among the LMBs that a removal names. This step comes
    /// before the release of LMBs with memory.
    pub(super) fn release_connectors<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        let Some(position) = self.next(table, |group| group.connector_only & group.eligible) else {
            self.go_to(Step::RemoveAndRelease);
            return Flow::Continue;
        };
        self.cursor = position;
        let failure = match table.connector(position) {
            Err(error) => Some(error),
            Ok(connector) => {
                let mut exchange =
                    self.exchange.take().unwrap_or(Exchange::release_again(connector));
                match exchange.continue_calls(machine.connectors, &mut [0; MAX_LIST_LEN]) {
                    Exchanged::Done(_) => None,
                    Exchanged::Failed(error) => Some(Error::Connector(error)),
                    Exchanged::Busy(milliseconds) => match self.wait_for(exchange, milliseconds) {
                        Ok(wait) => return Flow::Wait(wait),
                        Err(error) => Some(Error::Connector(error)),
                    },
                }
            }
        };
        match failure {
            Some(error) => self.skip_or_fail(error, FinalState::AsItWas, position, table, machine),
            None => {
                table.set_connector_only(position, false);
                self.summary.lmbs += 1;
                self.cursor = position + 1;
            }
        }
        *steps_left -= 1;
        if *steps_left == 0 { Flow::Working } else { Flow::Continue }
    }
}
