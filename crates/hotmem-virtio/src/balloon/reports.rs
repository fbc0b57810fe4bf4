//! Sends free page reports, one at a time. The memory manager chooses the memory of each report.

use super::memory::Memory;
use super::message::Message;
use super::queues::Queue;
use super::status::{Counters, Failure};
use super::turn::{Sent, Terms, Turn};
use core::time::Duration;
use hotmem::{PfnRange, Progress};

/// The state of reports: the number of frames in the report that is with the device.
#[derive(Debug, Default)]
pub(super) struct Reports {
    sent: Option<Sent<u64>>,
}

impl Reports {
    pub(super) fn is_overdue(&self) -> bool {
        self.sent.is_some_and(|sent| sent.is_overdue())
    }

    /// Handles an answer of the device. Returns whether a report was outstanding.
    pub(super) fn used<M: Memory>(&mut self, memory: &mut M, counters: &mut Counters) -> bool {
        let Some(Sent { request: frames, .. }) = self.sent.take() else { return false };
        counters.reports = counters.reports.wrapping_add(1);
        counters.reported = counters.reported.wrapping_add(frames);
        memory.reported();
        true
    }

    pub(super) fn next<M: Memory>(
        &mut self,
        now: Duration,
        terms: Terms,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Turn {
        if let Some(sent) = &mut self.sent {
            return sent.awaited(Queue::Reports, now, terms, counters);
        }
        match memory.next_report(now, terms.report_ranges) {
            Progress::Ready(ranges) => {
                let number = ranges.as_slice().len();
                if number == 0 || number > terms.report_ranges {
                    let first = ranges.as_slice().first().copied();
                    return Turn::Fail(Failure::Memory(first.unwrap_or(PfnRange::EMPTY)));
                }
                let frames = ranges.as_slice().iter().map(|range| range.frames()).sum();
                self.sent = Some(Sent::new(frames, now));
                Turn::Send(Message::Report(ranges))
            }
            Progress::Working => Turn::Again,
            Progress::Pending(until) => Turn::Wait(Some(until)),
            Progress::Idle => Turn::Wait(None),
        }
    }
}
