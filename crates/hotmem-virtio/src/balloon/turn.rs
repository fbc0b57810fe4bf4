//! Defines the result of a function's turn, and the wait for the device's answers.

use super::message::Message;
use super::queues::Queue;
use super::status::{Counters, Failure};
use crate::backoff::earlier;
use core::time::Duration;

/// Parameters of the device that the functions need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The time that the device may take to answer.
    pub(super) patience: Duration,
    /// The maximal number of ranges in a report.
    pub(super) report_ranges: usize,
}

/// The result of a function's turn.
pub(super) enum Turn {
    Send(Message),
    Actual(u32),
    Again,
    /// The function has nothing to do before this time, or before an event if the time is `None`.
    Wait(Option<Duration>),
    Silent(Queue),
    Fail(Failure),
}

/// A request that is with the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<T> {
    pub(super) request: T,
    /// The time of the last check for an answer.
    checked_at: Duration,
    /// The time waited until the last check.
    waited: Duration,
}

/// The time after which an answer is overdue. An overdue answer is still accepted.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// The first interval of polling for an answer without an interrupt.
const FIRST_CHECK: Duration = Duration::from_micros(20);

impl<T> Sent<T> {
    pub(super) fn new(request: T, now: Duration) -> Sent<T> {
        Sent { request, checked_at: now, waited: Duration::ZERO }
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.waited >= ANSWER_TIME
    }

    /// Returns what to do while the device has not answered on this queue.
    ///
    /// A clock may jump in either direction, and a machine may be stopped for an hour together with
    /// its device. So at most `ANSWER_TIME` counts as waited between two checks.
    pub(super) fn awaited(
        &mut self,
        queue: Queue,
        now: Duration,
        terms: Terms,
        counters: &mut Counters,
    ) -> Turn {
        let was_overdue = self.is_overdue();
        self.waited += now.saturating_sub(self.checked_at).min(ANSWER_TIME);
        self.checked_at = now;
        if self.is_overdue() && !was_overdue {
            counters.overdue = counters.overdue.wrapping_add(1);
        }
        if self.waited >= terms.patience {
            return Turn::Silent(queue);
        }
        let next = if self.is_overdue() { ANSWER_TIME } else { ANSWER_TIME - self.waited };
        let next = next.min(terms.patience - self.waited);
        Turn::Wait(Some(now.saturating_add(next)))
    }

    /// Returns what to do like [`awaited`](Self::awaited), but for an answer without an interrupt:
    /// the interval to the next check is the time waited so far.
    pub(super) fn awaited_by_polling(
        &mut self,
        queue: Queue,
        now: Duration,
        terms: Terms,
        counters: &mut Counters,
    ) -> Turn {
        match self.awaited(queue, now, terms, counters) {
            Turn::Wait(deadline) => {
                let next_check = now.saturating_add(self.waited.clamp(FIRST_CHECK, ANSWER_TIME));
                Turn::Wait(earlier(deadline, Some(next_check)))
            }
            silent => silent,
        }
    }
}
