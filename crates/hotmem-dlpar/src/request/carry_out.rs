//! A request from its beginning to its end, with the pauses and the repetitions that it takes.

use super::{Dlpar, Error, Failure, Machine, Progress, Request, Summary, Wait};
use crate::connectors::Connectors;
use core::time::Duration;
use hotmem::{Budget, Mapping, Platform};

/// Where [`Dlpar::carry_out`] stands between two polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// LMBs that the request has in hand.
    pub done: u32,
    /// How many it is to have.
    pub wanted: u32,
    /// How long to pause before it goes on; zero while there is something to do.
    pub pause: Duration,
    /// Why the request was undone and is to begin again, if it was.
    pub failure: Option<Failure>,
}

/// What to do after the pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Go on, or begin again.
    GoOn,
    /// Undo the request, or leave it at the failure.
    GiveUp,
}

impl Wait {
    /// How long to pause before the next poll: what the platform asked for; 100 ms for memory that
    /// may be able to leave later.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match *self {
            Wait::Connector { milliseconds, .. } | Wait::Update { milliseconds } => {
                Duration::from_millis(milliseconds.into())
            }
            Wait::Memory(_) | Wait::Elsewhere => MEMORY_PAUSE,
        }
    }
}

impl Failure {
    /// Whether the same request may be carried out later, without anything being changed by hand:
    /// it failed, or passed over LMBs until there were too few, for a reason that is
    /// [temporary](Error::is_temporary), and the machine is as it was.
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
/// Doublings of the pause before a request that failed begins again: up to 3.2 s.
const DOUBLINGS: u32 = 5;

impl<'f, P: Platform> Dlpar<'_, 'f, P> {
    /// Begins a request and polls it to its end: in an addition or a removal that the kernel vetoes
    /// for now, as often as `between` allows. It is called after each poll that is not the last,
    /// pauses for as long as it is told, and says whether to go on.
    ///
    /// A request that failed and may succeed later ([`Failure::is_temporary`]) was undone; it begins
    /// again after a pause of 100 ms, twice as long each time, up to 3.2 s. A removal that the
    /// platform has asked for by an event ends with its first failure ([`Next::GiveUp`]): the
    /// platform was told that the memory stays, and asks again itself.
    ///
    /// Cost: as for [`poll`](Self::poll), for each time that the request begins.
    ///
    /// # Errors
    /// Why the request could not be begun, or how it ended at last; [`Error::Elsewhere`] on another
    /// machine than the LMBs'.
    pub fn carry_out<M: Mapping, C: Connectors + ?Sized>(
        &mut self,
        request: Request,
        machine: &mut Machine<'_, 'f, P, M, C>,
        budget: Budget,
        mut between: impl FnMut(Between) -> Next,
    ) -> Result<Summary, Failure> {
        if machine.hotplug.machine() != self.machine {
            return Err(Error::Elsewhere.into());
        }
        let mut failures = 0;
        loop {
            self.begin(request)?;
            let failure = loop {
                let pause = match self.poll(machine, budget) {
                    Progress::Done(Ok(summary)) => return Ok(summary),
                    Progress::Done(Err(failure)) => break failure,
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
