//! Free page reports: one at a time, each as large as the memory manager makes it.

use super::driver::{Sent, Turn};
use super::memory::{Memory, NextReport};
use super::message::Message;
use super::status::Counters;
use core::time::Duration;

/// The report that is with the device: how many frames.
#[derive(Debug, Default)]
pub(super) struct Reports {
    sent: Option<Sent<u64>>,
}

impl Reports {
    pub(super) fn is_overdue(&self) -> bool {
        self.sent.is_some_and(|sent| sent.is_overdue())
    }

    /// The device answered. Whether that was due.
    pub(super) fn used<M: Memory>(&mut self, memory: &mut M, counters: &mut Counters) -> bool {
        let Some(Sent { what: frames, .. }) = self.sent.take() else { return false };
        counters.reports = counters.reports.wrapping_add(1);
        counters.reported = counters.reported.wrapping_add(frames);
        memory.reported();
        true
    }

    pub(super) fn next<M: Memory>(
        &mut self,
        now: Duration,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Turn {
        if let Some(sent) = &mut self.sent {
            return sent.awaited(now, counters);
        }
        match memory.next_report(now) {
            NextReport::Report(ranges) => {
                let frames = ranges.as_slice().iter().map(|range| range.frames()).sum();
                self.sent = Some(Sent::new(frames, now));
                Turn::Send(Message::Report(ranges))
            }
            NextReport::Again => Turn::Again,
            NextReport::WaitUntil(until) => Turn::Wait(Some(until)),
            NextReport::Idle => Turn::Wait(None),
        }
    }
}
