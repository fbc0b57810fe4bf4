//! What `drmgr` asks for: add or remove LMBs, all or nothing.
//!
//! A [`Request`] only says what is wanted. [`Dlpar`] keeps the request that is open beside the LMBs
//! that it works on, so no caller can lose one half-way: whoever has the [`Dlpar`] goes on with it
//! or cancels it.
//!
//! ```text
//! add      acquire ──▶ add ──▶ online ──▶ update ──▶ done
//!             └──────────┴───────┴──────────┘ fails: offline ──▶ release
//! remove   offline ──▶ check ──▶ sweep ──▶ release ──▶ update ──▶ done
//!             └──────────┴────────┴──────────┴───────────┘ fails: acquire ──▶ add ──▶ online ──▶ refuse
//! ```
//! The same steps serve both ways. Each works through the LMBs that the request has *taken*, the
//! connectors one by one, the memory in ranges of neighbours. A request by count passes over LMBs
//! that fail and takes the next; any other fails with its first LMB.
//!
//! Not every platform gives memory back that was released: QEMU does not. So a removal that takes
//! certain LMBs and no others checks all of them before it releases the first, and a removal that
//! fails without a loss tells the platform that the memory stays.
//!
//! | file | what |
//! |---|---|
//! | `wanted.rs`, `machine.rs` | what is asked for, and of what |
//! | `open.rs` | the state of the open request, and its steps |
//! | `carry_out.rs` | a request from beginning to end: pauses, and beginning again |
//! | `outcome.rs` | what comes of a request |
//! | `select.rs`, `taken.rs` | which LMBs it may take; which it has |
//! | `acquire.rs`, `release.rs` | connectors; memory leaves the engine with its connector |
//! | `add.rs`, `offline.rs`, `leaving.rs` | memory, by way of the engine |
//! | `sweep.rs` | connectors that an addition could not give back are released |
//! | `check.rs`, `refuse.rs` | whether all LMBs in hand can be released; telling the platform that they stay |
//! | `region.rs` | where the engine keeps the memory's words |
//! | `turn.rs`, `cancel.rs`, `end.rs` | what undoes it; the device tree learns of it |
//! | `note.rs` | what the log says (feature `log`) |

mod acquire;
mod add;
mod cancel;
mod carry_out;
mod check;
mod end;
mod leaving;
mod machine;
mod note;
mod offline;
mod open;
mod outcome;
mod refuse;
mod region;
mod release;
mod select;
mod sweep;
mod taken;
mod turn;
mod wanted;

pub use carry_out::{Between, Next};
pub use machine::Machine;
pub use outcome::{Error, Failure, Left, Progress, Refused, Summary, Wait};
pub use wanted::{Change, Request, Which};

use crate::connectors::Connectors;
use crate::table::Table;
use hotmem::{Budget, Hotplug, MachineId, Mapping, OnlineType, Platform};
use open::{Flow, Open, Step};

/// The LMBs of a machine and the request that is open on them, of which there is at most one.
///
/// An open request ends by being polled to its end; [`cancel`](Self::cancel) makes that end the one
/// at which everything is as it was. If this is dropped while a request is open, the LMBs in hand
/// stay as they are: connectors acquired, memory isolated or unmapped.
#[derive(Debug)]
pub struct Dlpar<'t, 'f, P: Platform> {
    table: Table<'t>,
    machine: MachineId,
    online: Option<OnlineType>,
    open: Option<Open<'f, P>>,
}

impl<'t, 'f, P: Platform> Dlpar<'t, 'f, P> {
    /// The LMBs of this table are those of this machine.
    pub fn new<M: Mapping>(table: Table<'t>, hotplug: &Hotplug<'f, P, M>) -> Dlpar<'t, 'f, P> {
        Dlpar { table, machine: hotplug.machine(), online: None, open: None }
    }

    /// Sets what added memory is put online for where a request does not say. `None`, the default,
    /// stands for what [`Hotplug::set_auto_online`] says.
    pub fn set_online_as(&mut self, online: impl Into<Option<OnlineType>>) {
        self.online = online.into();
    }

    /// The LMBs, as they are between requests: those in hand are changed at the end.
    #[must_use]
    pub fn table(&self) -> &Table<'t> {
        &self.table
    }

    /// The request that is open.
    #[must_use]
    pub fn request(&self) -> Option<Request> {
        self.open.as_ref().map(Open::request)
    }

    /// LMBs that the open request has in hand, and how many it is to have.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        (self.table.taken, self.open.as_ref().map_or(0, Open::wanted))
    }

    /// Opens a request. Nothing is done for it before it is polled.
    ///
    /// Cost: a 64th of a word per LMB of the table.
    ///
    /// # Errors
    /// [`Error::InProgress`] while another request is open; otherwise why it cannot be carried out
    /// whatever the machine does. Nothing has changed.
    pub fn begin(&mut self, request: Request) -> Result<(), Error> {
        let request = Request { online: request.online.or(self.online), ..request };
        let opened = match self.request() {
            Some(open) => Err(Error::InProgress(open)),
            None => Open::select(request, &self.table),
        };
        match opened {
            Ok(open) => self.open = Some(open),
            Err(error) => {
                let result = Err(error.into());
                note::request(request, self.table.lmb_size, &result);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Goes on with the open request; [`carry_out`](Self::carry_out) does so to its end, and begins
    /// again where that may help. The budget is in pageblocks, as the engine's; one LMB is the
    /// least. With another machine than its own, the request waits ([`Wait::Elsewhere`]).
    ///
    /// Cost: what the LMBs of the request need; a 64th of a word per LMB of the table for looking
    /// for candidates; and the property, which is written as a whole.
    pub fn poll<M: Mapping, C: Connectors + ?Sized>(
        &mut self,
        machine: &mut Machine<'_, 'f, P, M, C>,
        budget: Budget,
    ) -> Progress {
        let Some(open) = &mut self.open else { return Progress::Idle };
        if machine.hotplug.machine() != self.machine {
            return Progress::Pending(Wait::Elsewhere);
        }
        let progress = open.poll(&mut self.table, machine, budget);
        if let Progress::Done(_) = progress {
            self.open = None;
        }
        progress
    }

    /// Turns the open request round: what it did is undone by further polls, and it ends with
    /// [`Error::Cancelled`]. Again, while it waits in undoing: it waits no longer, and what it
    /// waited for is named as lost or not restored.
    pub fn cancel(&mut self) {
        if let Some(open) = &mut self.open {
            open.cancel();
        }
    }
}
