//! Runs points.

use super::expected::{ExpectedFailures, ExpectedFailuresError};
use super::report::Report;
use super::verdict::{Fault, Verdict};
use crate::device::Device;
use crate::driver::Clock;
use crate::point::{Outcome, Point};
use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The points for a kind of device, and how a new device is made.
pub struct Suite<F> {
    points: &'static [Point],
    new_device: Arc<F>,
    expected: ExpectedFailures,
    answer_limit: Duration,
    point_limit: Duration,
    has_processes: bool,
}

impl<F, D> Suite<F>
where
    F: Fn() -> D + Send + Sync + 'static,
    D: Device,
{
    /// Makes a suite. `new_device` is called for each point, on the thread of the point.
    pub fn new(points: &'static [Point], new_device: F) -> Suite<F> {
        Suite {
            points,
            new_device: Arc::new(new_device),
            expected: ExpectedFailures::default(),
            answer_limit: Duration::from_secs(1),
            point_limit: Duration::from_secs(60),
            has_processes: false,
        }
    }

    /// Sets the failures that are expected, instead of none. Each line of `text` has the name of one of
    /// the points and a reason. Empty lines and lines that begin with `#` have no meaning.
    ///
    /// # Errors
    /// The first line that is not valid.
    pub fn expecting(self, text: &str) -> Result<Suite<F>, ExpectedFailuresError> {
        let expected = ExpectedFailures::parse(text, self.points)?;
        Ok(Suite { expected, ..self })
    }

    /// Sets the time within which a device must answer a request. The default is 1 second.
    #[must_use]
    pub fn answer_limit(self, answer_limit: Duration) -> Suite<F> {
        Suite { answer_limit, ..self }
    }

    /// Sets the time within which a point must end. The default is 60 seconds.
    #[must_use]
    pub fn point_limit(self, point_limit: Duration) -> Suite<F> {
        Suite { point_limit, ..self }
    }

    /// Makes [`main`](Suite::main) run each point in a process of its own, which is the same program again, so
    /// that a device that ends the process fails only its point. [`run`](Suite::run) is not affected.
    ///
    /// Cost: a process for each point, which must reach [`main`](Suite::main) again.
    #[must_use]
    pub fn each_point_in_a_process(self) -> Suite<F> {
        Suite { has_processes: true, ..self }
    }

    pub(super) fn has_processes(&self) -> bool {
        self.has_processes
    }

    pub(super) fn limit(&self) -> Duration {
        self.point_limit
    }

    /// Returns why the point is expected to fail, if it is.
    pub(super) fn expected_reason(&self, point: &Point) -> Option<&str> {
        self.expected.reason(point.name)
    }

    /// Returns the points.
    #[must_use]
    pub fn points(&self) -> &'static [Point] {
        self.points
    }

    /// Runs all points, one after another. A point ends at the latest after [`point_limit`](Self::point_limit).
    #[must_use]
    pub fn run(&self) -> Report {
        Report::new(self.points.iter().map(|point| (point, self.run_point(point))).collect())
    }

    /// Runs one point with a new device.
    ///
    /// If the device does not return, its thread goes on.
    #[must_use]
    pub fn run_point(&self, point: &'static Point) -> Verdict {
        let expected = self.expected.reason(point.name).map(str::to_owned);
        match (self.outcome(point), expected) {
            (Ok(Outcome::Passed), None) => Verdict::Passed,
            (Ok(Outcome::Passed), Some(reason)) => Verdict::PassedUnexpectedly(reason),
            (Ok(Outcome::Skipped(reason)), _) => Verdict::Skipped(reason),
            (Ok(Outcome::Failed(failure)), expected) => failed(Fault::Deviates(failure), expected),
            (Err(fault), expected) => failed(fault, expected),
        }
    }

    fn outcome(&self, point: &'static Point) -> Result<Outcome, Fault> {
        let (new_device, answer_limit) = (Arc::clone(&self.new_device), self.answer_limit);
        let (sender, receiver) = mpsc::channel();
        let steps = move || {
            let mut device = new_device();
            let start = Instant::now();
            let now = || {
                // A device that has a thread of its own gets the CPU.
                thread::yield_now();
                start.elapsed()
            };
            let outcome = point.check(&mut device, Clock::new(&now, answer_limit));
            drop(device);
            // The receiver has gone if the point has taken too long.
            let _ = sender.send(outcome);
        };
        let thread = thread::Builder::new().name(point.name.to_owned()).spawn(steps);
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return Err(Fault::NoThread(error.kind())),
        };
        match receiver.recv_timeout(self.point_limit) {
            Ok(outcome) => Ok(outcome),
            Err(RecvTimeoutError::Timeout) => Err(Fault::Hangs(self.point_limit)),
            Err(RecvTimeoutError::Disconnected) => {
                let message = thread.join().err().map_or_else(String::new, |panic| text(&*panic));
                Err(Fault::Panics(message))
            }
        }
    }
}

fn failed(fault: Fault, expected: Option<String>) -> Verdict {
    match expected {
        Some(reason) => Verdict::FailedAsExpected(fault, reason),
        None => Verdict::Failed(fault),
    }
}

/// Returns the message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("the panic has no message").to_owned()
}
