//! What a conversation says in its turn, and how it waits for an answer.

use super::message::Message;
use super::queues::Queue;
use super::status::{Counters, Failure};
use crate::backoff::earlier;
use core::time::Duration;

/// What the conversations need to know of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// How long it may owe an answer.
    pub(super) patience: Duration,
    /// Ranges that a report may have.
    pub(super) report_ranges: usize,
}

/// What a conversation has to say when it is its turn.
pub(super) enum Turn {
    Send(Message),
    Actual(u32),
    Again,
    /// Nothing before this time, or before something happens.
    Wait(Option<Duration>),
    Silent(Queue),
    Fail(Failure),
}

/// A request that is with the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<T> {
    pub(super) what: T,
    /// When it was last looked whether there is an answer, and how long it was waited for until
    /// then.
    looked: Duration,
    waited: Duration,
}

/// A device that takes longer is not working properly; still it may answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// When to look first for an answer of which no interrupt tells.
const FIRST_LOOK: Duration = Duration::from_micros(20);

impl<T> Sent<T> {
    pub(super) fn new(what: T, now: Duration) -> Sent<T> {
        Sent { what, looked: now, waited: Duration::ZERO }
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.waited >= ANSWER_TIME
    }

    /// Returns what to do while the device owes the answer on this queue.
    ///
    /// A clock may jump in either direction, and a machine may be stopped for an hour together with
    /// its device: between two looks no more than the time of one answer has passed.
    pub(super) fn awaited(
        &mut self,
        queue: Queue,
        now: Duration,
        terms: Terms,
        counters: &mut Counters,
    ) -> Turn {
        let was_overdue = self.is_overdue();
        self.waited += now.saturating_sub(self.looked).min(ANSWER_TIME);
        self.looked = now;
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

    /// Returns the same if no interrupt tells of the answer: to look again after as long as it has
    /// been waited for so far.
    pub(super) fn looked_for(
        &mut self,
        queue: Queue,
        now: Duration,
        terms: Terms,
        counters: &mut Counters,
    ) -> Turn {
        match self.awaited(queue, now, terms, counters) {
            Turn::Wait(deadline) => {
                let look = now.saturating_add(self.waited.clamp(FIRST_LOOK, ANSWER_TIME));
                Turn::Wait(earlier(deadline, Some(look)))
            }
            silent => silent,
        }
    }
}
