//! Sends statistics when the device asks for them, at a limited rate (5.5.6.3).

use super::memory::Memory;
use super::message::Message;
use super::statistics::MemoryStatistics;
use super::status::Counters;
use super::step::{Action, Step};
use core::time::Duration;

/// The state of the statistics queue. The device keeps the buffer, and gives it back to request new
/// statistics.
#[derive(Debug, Default)]
pub(super) struct StatisticsSender {
    device_has_buffer: bool,
    /// What was sent last.
    last_statistics: Option<MemoryStatistics>,
    last_sent: Option<Duration>,
}

/// The minimal interval between two messages with statistics.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

impl StatisticsSender {
    /// Handles an answer of the device, which gives the buffer back. Returns whether the device had
    /// the buffer.
    pub(super) fn handle_answer(&mut self) -> bool {
        core::mem::take(&mut self.device_has_buffer)
    }

    pub(super) fn next<M: Memory>(
        &mut self,
        now: Duration,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Step {
        if self.device_has_buffer {
            return Step::Idle;
        }
        // A clock that was set back must not delay the next message.
        self.last_sent = self.last_sent.map(|last_sent| last_sent.min(now));
        let until = self.last_sent.map(|last_sent| last_sent.saturating_add(MIN_INTERVAL));
        if let Some(until) = until.filter(|&until| now < until) {
            return Step::Pending(until);
        }
        let statistics = memory.statistics();
        let last = self.last_statistics.unwrap_or(statistics);
        let statistics = statistics.with_keys_of(&last);
        // A kernel that has none yet may have some later.
        self.last_statistics = Some(statistics).filter(|&sent| sent != MemoryStatistics::default());
        self.last_sent = Some(now);
        self.device_has_buffer = true;
        counters.statistics = counters.statistics.wrapping_add(1);
        Step::Ready(Ok(Action::Send(Message::Statistics(statistics))))
    }
}
