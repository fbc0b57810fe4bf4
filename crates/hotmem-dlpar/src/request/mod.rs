//! Requests to add or to remove LMBs, all or nothing, as `drmgr` makes them.
//!
//! A [`Request`] only describes the request. [`Dlpar`] holds the open request together with the
//! LMBs, so a request that its caller abandons is not lost: the owner of the [`Dlpar`] continues or
//! cancels it.
//!
//! ```text
//! add      acquire ──▶ add ──▶ online ──▶ update ──▶ done
//!             └──────────┴───────┴──────────┘ fails: offline ──▶ release
//! remove   offline ──▶ check ──▶ release ──▶ update ──▶ done
//!             └──────────┴──────────┴──────────┘ fails: acquire ──▶ add ──▶ online ──▶ report failure
//! ```
//! Both directions use the same steps. Each step handles all LMBs that the request has *taken*:
//! their connectors one by one, their memory in ranges of neighbours. A request by count skips LMBs
//! that fail and takes others; any other request fails with its first LMB.
//!
//! Some platforms, such as QEMU, do not give released memory back. So a removal of specific LMBs
//! checks all of them before it releases the first, and a removal that fails without a loss reports
//! to the platform that the memory stays.
//!
//! | file | contents |
//! |---|---|
//! | `machine.rs` | the machine that a request works on |
//! | `open.rs` | the state of the open request, and its steps |
//! | `carry_out.rs` | carries a request out to its end, with pauses and repetitions |
//! | `select.rs`, `candidates.rs`, `taken.rs` | the LMBs that it may take; those that it has taken |
//! | `acquire.rs`, `release.rs` | acquires connectors; releases them and removes their memory |
//! | `add.rs`, `offline.rs`, `offline_stretch.rs` | adds memory to the engine, and takes it offline |
//! | `release_connectors.rs` | releases connectors that a failed addition has left behind |
//! | `check.rs`, `report_failure.rs` | checks that all taken LMBs can be released; reports to the platform that they stay |
//! | `region.rs` | announces memory to the engine |
//! | `recover.rs` | takes up what a [`Dlpar`] has left that was dropped |
//! | `undo.rs`, `cancel.rs`, `end.rs` | undoes a request; updates the device tree |
//! | `log_lines.rs` | log messages (feature `log`) |

mod acquire;
mod add;
mod cancel;
mod candidates;
mod carry_out;
mod check;
mod end;
mod log_lines;
mod machine;
mod offline;
mod offline_stretch;
mod open;
mod recover;
mod region;
mod release;
mod release_connectors;
mod report_failure;
mod select;
mod taken;
mod undo;

pub use carry_out::PollState;
pub use machine::Machine;

use crate::connectors::Connectors;
use crate::description::Request;
use crate::outcome::{Error, Progress, Wait};
use crate::table::Table;
use hotmem::{Budget, Frames, Hotplug, Map, OnlineType, Platform};
use open::{Flow, OpenRequest, Step};

/// The LMBs of a machine and the open request, of which there is at most one.
///
/// An open request must be polled to its end; after [`cancel`](Self::cancel), that end restores the
/// former state. If the [`Dlpar`] is dropped while a request is open, the memory that the request has
/// isolated is given back, and other LMBs stay as they are: connectors acquired, memory offline or
/// unmapped. Then make a new table, let it [recover](Table::recover), and bind it to a new [`Dlpar`].
#[derive(Debug)]
pub struct Dlpar<'t, 'f, P: Platform> {
    table: Table<'t>,
    /// The frames of the instance that the table belongs to.
    frames: &'f Frames<P>,
    online: Option<OnlineType>,
    open_request: Option<OpenRequest<'f, P>>,
}

impl<'t, 'f, P: Platform> Dlpar<'t, 'f, P> {
    /// Binds the LMBs of a table to an instance.
    pub fn new<M: Map>(table: Table<'t>, hotplug: &Hotplug<'f, P, M>) -> Dlpar<'t, 'f, P> {
        Dlpar { table, frames: hotplug.frames(), online: None, open_request: None }
    }

    /// Returns whether the LMBs belong to the instance that `hotplug` controls.
    fn belongs_to<M: Map>(&self, hotplug: &Hotplug<'f, P, M>) -> bool {
        core::ptr::eq(self.frames, hotplug.frames())
    }

    /// Sets how added memory is put online if a request does not say. With `None`, the default,
    /// [`Settings::auto_online`](hotmem::Settings::auto_online) decides.
    pub fn set_online_as(&mut self, online: impl Into<Option<OnlineType>>) {
        self.online = online.into();
    }

    /// Returns the LMBs in their state between requests: taken LMBs change at the end of a request.
    #[must_use]
    pub fn table(&self) -> &Table<'t> {
        &self.table
    }

    /// Returns the request that is open.
    #[must_use]
    pub fn request(&self) -> Option<Request> {
        self.open_request.as_ref().map(OpenRequest::request)
    }

    /// Returns how many LMBs the open request has taken, and how many it needs.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        (self.table.taken_lmbs, self.open_request.as_ref().map_or(0, OpenRequest::wanted))
    }

    /// Opens a request. The work begins when it is polled.
    ///
    /// Cost: reads one word for every 64 LMBs of the table.
    ///
    /// # Errors
    /// [`Error::InProgress`] while another request is open, or the reason why the request can never
    /// succeed. Nothing has changed.
    pub fn begin(&mut self, request: Request) -> Result<(), Error> {
        let request = Request { online: request.online.or(self.online), ..request };
        let opened = match self.request() {
            Some(open) => Err(Error::InProgress(open)),
            None => OpenRequest::select(request, &self.table),
        };
        match opened {
            Ok(open) => self.open_request = Some(open),
            Err(error) => {
                let result = Err(error.into());
                log_lines::log_request(request, self.table.lmb_size, &result);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Continues the open request. [`carry_out`](Self::carry_out) does so to its end, and begins
    /// again after a temporary failure. The budget is in pageblocks, as for the engine; at least one
    /// LMB is handled. With another instance than its own the request waits
    /// ([`Wait::OtherInstance`]).
    ///
    /// Cost: proportional to the LMBs of the request; one word for every 64 LMBs of the table to
    /// find candidates; and the property, which is written as a whole.
    pub fn poll<M: Map, C: Connectors + ?Sized>(
        &mut self,
        machine: &mut Machine<'_, 'f, P, M, C>,
        budget: Budget,
    ) -> Progress {
        let is_own = self.belongs_to(machine.hotplug);
        let Some(open) = &mut self.open_request else { return Progress::Idle };
        if !is_own {
            return Progress::Pending(Wait::OtherInstance);
        }
        let progress = open.poll(&mut self.table, machine, budget);
        if let Progress::Ready(_) = progress {
            self.open_request = None;
        }
        progress
    }

    /// Cancels the open request. Further polls undo its work, and it ends with
    /// [`Error::Cancelled`]. A second call, while the undoing waits, ends the wait; the LMBs
    /// concerned are reported as lost or not restored.
    pub fn cancel(&mut self) {
        if let Some(open) = &mut self.open_request {
            open.cancel();
        }
    }
}
