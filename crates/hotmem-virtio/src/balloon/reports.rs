//! Sends free page reports, one at a time. The memory manager chooses the memory of each report.

use super::in_flight::{DeviceLimits, InFlight};
use super::memory::Memory;
use super::message::Message;
use super::queues::Queue;
use super::status::{Counters, Failure};
use super::step::{Action, Step};
use core::time::Duration;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{PfnRange, Progress};

/// The state of reports: the number of frames in the report that is with the device.
#[derive(Debug, Default)]
pub(super) struct Reports {
    in_flight: Option<InFlight<u64>>,
}

impl Reports {
    pub(super) fn is_overdue(&self) -> bool {
        self.in_flight.is_some_and(|sent| sent.is_overdue())
    }

    /// Handles an answer of the device, which has initialised the first `initialised_bytes` of the report.
    /// Returns whether a report was outstanding.
    pub(super) fn handle_answer<M: Memory>(
        &mut self,
        initialised_bytes: u32,
        memory: &mut M,
        counters: &mut Counters,
    ) -> bool {
        let Some(InFlight { request: frames, .. }) = self.in_flight.take() else { return false };
        counters.reports = counters.reports.wrapping_add(1);
        counters.reported_frames = counters.reported_frames.wrapping_add(frames);
        // A frame of which the device has initialised a part is not initialised. The queue refuses more
        // bytes than the report has; a kernel's own queue may not.
        let initialised = match u64::from(initialised_bytes) {
            bytes if bytes <= frames * FRAME_SIZE => bytes / FRAME_SIZE,
            _ => {
                counters.invalid_answers = counters.invalid_answers.wrapping_add(1);
                0
            }
        };
        counters.initialised_frames = counters.initialised_frames.wrapping_add(initialised);
        memory.report_answered(initialised);
        true
    }

    pub(super) fn next<M: Memory>(
        &mut self,
        now: Duration,
        limits: DeviceLimits,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Step {
        if let Some(sent) = &mut self.in_flight {
            return sent.wait_for_answer(Queue::Reports, now, limits, counters);
        }
        match memory.next_report(now, limits.max_report_ranges) {
            Progress::Ready(ranges) => {
                let number = ranges.as_slice().len();
                if number == 0 || number > limits.max_report_ranges {
                    let first = ranges.as_slice().first().copied();
                    return Step::Ready(Err(Failure::WrongRange(first.unwrap_or(PfnRange::EMPTY))));
                }
                let frames = ranges.as_slice().iter().map(|range| range.frames()).sum();
                self.in_flight = Some(InFlight::new(frames, now));
                Step::Ready(Ok(Action::Send(Message::Report(ranges))))
            }
            Progress::Working => Step::Working,
            Progress::Pending(until) => Step::Pending(until),
            Progress::Idle => Step::Idle,
        }
    }
}
