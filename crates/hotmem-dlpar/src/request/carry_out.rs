//! Carries a request out to its end, with the necessary pauses, and repeats a request that failed
//! for a temporary reason.

use super::{Dlpar, Machine};
use crate::connectors::Connectors;
use crate::description::Request;
use crate::outcome::{Error, Failure, Progress, Summary, Wait};
use core::ops::ControlFlow;
use core::time::Duration;
use hotmem::{Budget, Map, Platform};

/// The state of [`Dlpar::carry_out`] after a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollState {
    /// The number of LMBs that the request has taken.
    pub taken_lmbs: u32,
    /// The number of LMBs that the request needs.
    pub wanted_lmbs: u32,
    /// The pause before the next poll. It is zero while the request can continue at once.
    pub pause: Duration,
    /// If the request failed and was undone, the failure. The request can begin again.
    pub failure: Option<Failure>,
}

impl Wait {
    /// Returns the pause before the next poll: the delay that the platform requests, or 100 ms if
    /// memory may become removable later.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match *self {
            Wait::Connector { milliseconds, .. } | Wait::Update { milliseconds } => {
                Duration::from_millis(milliseconds.into())
            }
            Wait::Memory(_) | Wait::OtherInstance => MEMORY_PAUSE,
        }
    }
}

impl Failure {
    /// Returns whether the same request may succeed later without intervention: it failed or
    /// skipped too many LMBs for a [temporary](Error::is_temporary) reason, and the machine is as
    /// it was before.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        let error = match self.error {
            Error::NotEnough { .. } => self.first_skip_error.unwrap_or(self.error),
            error => error,
        };
        error.is_temporary() && self.unrestored == 0 && self.lost == 0
    }
}

const MEMORY_PAUSE: Duration = Duration::from_millis(100);
/// The number of times that the pause before a failed request begins again is doubled, so that the
/// pause is at most 3.2 s.
const DOUBLINGS: u32 = 5;

impl<'f, P: Platform> Dlpar<'_, 'f, P> {
    /// Begins a request and polls it to its end. Calls `after_poll` after each poll except the last.
    /// `after_poll` must wait for [`PollState::pause`], and decides whether to continue: a `Break` undoes
    /// the request, or returns the failure.
    ///
    /// A request that failed but may succeed later ([`Failure::is_temporary`]) has been undone. It
    /// begins again after a pause of 100 ms, which doubles each time, up to 3.2 s. For a removal
    /// that the platform requested by an event, `after_poll` should return [`ControlFlow::Break`]
    /// at the first failure: the platform knows that the memory stays, and will ask again.
    ///
    /// Cost: as for [`poll`](Self::poll), for each time that the request begins.
    ///
    /// # Errors
    /// The reason why the request could not begin, or its last failure. [`Error::OtherInstance`] if
    /// the LMBs belong to another instance.
    pub fn carry_out<M: Map, C: Connectors + ?Sized>(
        &mut self,
        request: Request,
        machine: &mut Machine<'_, 'f, P, M, C>,
        budget: Budget,
        mut after_poll: impl FnMut(PollState) -> ControlFlow<()>,
    ) -> Result<Summary, Failure> {
        if !self.belongs_to(machine.hotplug) {
            return Err(Error::OtherInstance.into());
        }
        let mut failures = 0;
        loop {
            self.begin(request)?;
            let failure = loop {
                let pause = match self.poll(machine, budget) {
                    Progress::Ready(Ok(summary)) => return Ok(summary),
                    Progress::Ready(Err(failure)) => break failure,
                    Progress::Working | Progress::Idle => Duration::ZERO,
                    Progress::Pending(wait) => wait.pause(),
                };
                let (taken_lmbs, wanted_lmbs) = self.progress();
                let state = PollState { taken_lmbs, wanted_lmbs, pause, failure: None };
                if after_poll(state).is_break() {
                    self.cancel();
                }
            };
            let pause = MEMORY_PAUSE * (1 << failures.min(DOUBLINGS));
            let state = PollState { taken_lmbs: 0, wanted_lmbs: 0, pause, failure: Some(failure) };
            if !failure.is_temporary() || after_poll(state).is_break() {
                return Err(failure);
            }
            failures += 1;
        }
    }
}
