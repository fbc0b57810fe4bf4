//! Waits for the device's answer to a request.

use super::message::Ranges;
use super::queues::Queue;
use super::status::Counters;
use super::step::{Action, Step};
use core::time::Duration;

/// The limits that the services observe.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceLimits {
    /// The time that the device may take to answer.
    pub(super) answer_timeout: Duration,
    /// The maximal number of ranges in a report.
    pub(super) max_report_ranges: usize,
    /// Whether the driver sends hints. Otherwise it ends each round of hints without one.
    pub(super) allows_hints: bool,
}

impl DeviceLimits {
    /// Returns the limits of a device with this time limit, reports of any number of ranges, and hints.
    pub(super) fn with_answer_timeout(answer_timeout: Duration) -> DeviceLimits {
        DeviceLimits { answer_timeout, max_report_ranges: Ranges::MAX_LEN, allows_hints: true }
    }
}

/// A request that is with the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight<T> {
    pub(super) request: T,
    /// The time of the last check for an answer.
    checked_at: Duration,
    /// The time waited until the last check.
    time_waited: Duration,
}

/// The time after which an answer is overdue. An overdue answer is still accepted.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// The interval between the first two checks for an answer on a queue whose interrupts are
/// suppressed.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_micros(20);

impl<T> InFlight<T> {
    pub(super) fn new(request: T, now: Duration) -> InFlight<T> {
        InFlight { request, checked_at: now, time_waited: Duration::ZERO }
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.time_waited >= ANSWER_TIME
    }

    /// Continues the wait for the device's answer on this queue. Returns the time of the next check,
    /// or requests a reset if the device has exceeded its time limit.
    ///
    /// A clock may jump in either direction, and a machine may be stopped for an hour together with
    /// its device. So at most `ANSWER_TIME` counts as waited between two checks.
    pub(super) fn wait_for_answer(
        &mut self,
        queue: Queue,
        now: Duration,
        limits: DeviceLimits,
        counters: &mut Counters,
    ) -> Step {
        let was_overdue = self.is_overdue();
        self.time_waited += now.saturating_sub(self.checked_at).min(ANSWER_TIME);
        self.checked_at = now;
        if self.is_overdue() && !was_overdue {
            counters.overdue_requests = counters.overdue_requests.wrapping_add(1);
        }
        if self.time_waited >= limits.answer_timeout {
            return Step::Ready(Ok(Action::Reset(queue)));
        }
        let wait = if self.is_overdue() { ANSWER_TIME } else { ANSWER_TIME - self.time_waited };
        let wait = wait.min(limits.answer_timeout - self.time_waited);
        Step::Pending(now.saturating_add(wait))
    }

    /// Continues the wait like [`wait_for_answer`](Self::wait_for_answer), for a queue whose
    /// interrupts are suppressed. The time until the next check is as long as the wait so far.
    pub(super) fn poll_for_answer(
        &mut self,
        queue: Queue,
        now: Duration,
        limits: DeviceLimits,
        counters: &mut Counters,
    ) -> Step {
        match self.wait_for_answer(queue, now, limits, counters) {
            Step::Pending(deadline) => {
                let next_check =
                    now.saturating_add(self.time_waited.clamp(FIRST_CHECK_INTERVAL, ANSWER_TIME));
                Step::Pending(deadline.min(next_check))
            }
            reset => reset,
        }
    }
}
