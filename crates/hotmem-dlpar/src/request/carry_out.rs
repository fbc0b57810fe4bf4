//! Carries a request out to its end, with the necessary pauses and repetitions.

use super::{Dlpar, Error, Failure, Machine, Progress, Request, Summary, Wait};
use crate::connectors::Connectors;
use core::time::Duration;
use hotmem::{Budget, Mapping, Platform};

/// The state of [`Dlpar::carry_out`] between two polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// The number of LMBs that the request has taken.
    pub done: u32,
    /// The number of LMBs that it needs.
    pub wanted: u32,
    /// The pause before the next poll; zero while there is work to do.
    pub pause: Duration,
    /// The reason why the request was undone and will begin again, if it was.
    pub failure: Option<Failure>,
}

/// What to do after the pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Continue, or begin again.
    GoOn,
    /// Undo the request, or return the failure.
    GiveUp,
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
            Wait::Memory(_) | Wait::OtherMachine => MEMORY_PAUSE,
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
            Error::NotEnough { .. } => self.because.unwrap_or(self.error),
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
    /// Begins a request and polls it to its end. Calls `between` after each poll except the last.
    /// `between` must wait for [`Between::pause`], and decides whether to continue.
    ///
    /// A request that failed but may succeed later ([`Failure::is_temporary`]) has been undone. It
    /// begins again after a pause of 100 ms, which doubles each time, up to 3.2 s. For a removal
    /// that the platform requested by an event, `between` should return [`Next::GiveUp`] at the
    /// first failure: the platform knows that the memory stays, and will ask again.
    ///
    /// Cost: as for [`poll`](Self::poll), for each time that the request begins.
    ///
    /// # Errors
    /// The reason why the request could not begin, or its last failure. [`Error::OtherMachine`] if
    /// the machine is not that of the LMBs.
    pub fn carry_out<M: Mapping, C: Connectors + ?Sized>(
        &mut self,
        request: Request,
        machine: &mut Machine<'_, 'f, P, M, C>,
        budget: Budget,
        mut between: impl FnMut(Between) -> Next,
    ) -> Result<Summary, Failure> {
        if machine.hotplug.machine() != self.machine {
            return Err(Error::OtherMachine.into());
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
                let (done, wanted) = self.progress();
                if between(Between { done, wanted, pause, failure: None }) == Next::GiveUp {
                    self.cancel();
                }
            };
            let pause = MEMORY_PAUSE * (1 << failures.min(DOUBLINGS));
            let again = Between { done: 0, wanted: 0, pause, failure: Some(failure) };
            if !failure.is_temporary() || between(again) == Next::GiveUp {
                return Err(failure);
            }
            failures += 1;
        }
    }
}
