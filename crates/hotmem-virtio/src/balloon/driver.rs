//! Contains the state machine of the driver, which steps the four functions of the device in turn.

use super::config::RawConfig;
use super::features::Features;
use super::hints::Hints;
use super::inflation::Inflation;
use super::memory::Memory;
use super::message::{Message, Ranges};
use super::queues::Queue;
use super::reports::Reports;
use super::statistics_sender::StatisticsSender;
use super::status::{Counters, Failure, Pending, Status};
use super::turn::{Terms, Turn};
use crate::backoff::earlier;
use core::time::Duration;
use hotmem::Progress;

/// The driver of one device. It does no I/O: [`step`](Driver::step) returns what to do.
///
/// ```
/// use core::time::Duration;
/// use hotmem_virtio::balloon::{Action, Driver, Memory, Message, Queue, RawConfig, Step};
///
/// trait Device {
///     fn config(&self) -> RawConfig;
///     fn set_actual(&mut self, frames: u32);
///     /// Puts the request on its queue.
///     fn send(&mut self, message: Message);
///     /// Takes a used buffer off a queue, and returns the queue.
///     fn used(&mut self) -> Option<Queue>;
/// }
///
/// /// Call this when the device interrupts, when memory was freed, and at the time that the last
/// /// call returned.
/// fn poll(driver: &mut Driver, device: &mut impl Device, memory: &mut impl Memory,
///         now: Duration) -> Step {
///     loop {
///         let used = device.used();
///         match driver.step(now, &device.config(), used, memory) {
///             Step::Ready(Ok(Action::Send(message))) => device.send(message),
///             Step::Ready(Ok(Action::SetActual(frames))) => device.set_actual(frames),
///             Step::Working => {}
///             rest if used.is_none() => return rest,
///             _ => {}
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Driver {
    features: Features,
    inflation: Inflation,
    reports: Reports,
    hints: Hints,
    statistics_sender: StatisticsSender,
    failure: Option<Failure>,
    counters: Counters,
    terms: Terms,
}

/// The progress of the driver. If it is pending until a time, or idle, step the driver at that
/// time, or earlier if the device interrupts or memory is freed. A failure stops the driver; memory
/// that the device holds stays out of use until the device is reset.
pub type Step = Progress<Result<Action, Failure>, Duration>;

/// What the caller must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put this request on its queue, then step again. The buffers of the request belong to the
    /// device until the device has used them, however long that takes.
    Send(Message),
    /// Write this number to the field `actual` of the configuration, then step again.
    SetActual(u32),
    /// The device has not answered on this queue for too long: reset it, call
    /// [`Memory::device_reset`], and begin again with a [new driver](Driver::new).
    Reset(Queue),
}

impl Driver {
    /// Makes a driver for a device that was just reset and has negotiated these features.
    #[must_use]
    pub fn new(features: Features, config: &RawConfig) -> Driver {
        Driver {
            features,
            inflation: Inflation::new(features, config.num_pages),
            reports: Reports::default(),
            hints: Hints::default(),
            statistics_sender: StatisticsSender::default(),
            failure: None,
            counters: Counters::default(),
            terms: Terms { patience: Self::PATIENCE, report_ranges: Ranges::MOST },
        }
    }

    /// The default time that a device may take to answer; see
    /// [`with_patience`](Self::with_patience).
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// Sets the time that the device may take to answer before it must be reset.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Driver {
        self.terms.patience = patience;
        self
    }

    /// Sets the maximal number of ranges in a report to `most`, limited to [`Ranges::MOST`].
    #[must_use]
    pub fn with_report_ranges(mut self, most: usize) -> Driver {
        self.terms.report_ranges = most.clamp(1, Ranges::MOST);
        self
    }

    /// Continues the counters of `before`, the driver of the same device before its reset.
    #[must_use]
    pub fn after(mut self, before: &Driver) -> Driver {
        self.counters = before.counters;
        self.counters.resets = self.counters.resets.wrapping_add(1);
        self
    }

    /// Decides what to do next. `used` is a queue on which the device has used the outstanding
    /// buffer. Cost: one or two calls of [`Memory`].
    pub fn step<M: Memory>(
        &mut self,
        now: Duration,
        config: &RawConfig,
        used: Option<Queue>,
        memory: &mut M,
    ) -> Step {
        if let Some(queue) = used
            && !self.settle(queue, memory)
        {
            self.fail(Failure::Stray(queue));
        }
        if let Some(failure) = self.failure {
            return Step::Ready(Err(failure));
        }
        self.inflation.observe(now, config.num_pages);
        self.hints.observe(config);

        let (mut until, mut again) = (None, false);
        let has = |feature| self.features.contains(feature);
        let (reports, hints, statistics) =
            (has(Features::PAGE_REPORTING), has(Features::FREE_PAGE_HINT), has(Features::STATS_VQ));
        for function in 0..4 {
            let counters = &mut self.counters;
            let turn = match function {
                0 if reports => self.reports.next(now, self.terms, memory, counters),
                1 => self.inflation.next(now, self.terms, memory, counters),
                2 if hints => self.hints.next(now, self.terms, memory, counters),
                3 if statistics => self.statistics_sender.next(now, memory, counters),
                _ => Turn::Wait(None),
            };
            match turn {
                Turn::Send(message) => return Step::Ready(Ok(Action::Send(message))),
                Turn::Actual(frames) => return Step::Ready(Ok(Action::SetActual(frames))),
                Turn::Again => again = true,
                Turn::Wait(time) => until = earlier(until, time),
                Turn::Silent(queue) => return Step::Ready(Ok(Action::Reset(queue))),
                Turn::Fail(failure) => {
                    self.fail(failure);
                    return Step::Ready(Err(failure));
                }
            }
        }
        match until {
            _ if again => Step::Working,
            Some(until) if until <= now => Step::Working,
            Some(until) => Step::Pending(until),
            None => Step::Idle,
        }
    }

    /// Handles an answer of the device on `queue`. Returns whether a request was outstanding there.
    fn settle<M: Memory>(&mut self, queue: Queue, memory: &mut M) -> bool {
        let counters = &mut self.counters;
        match queue {
            Queue::Inflate => self.inflation.used(true, memory, counters),
            Queue::Deflate => self.inflation.used(false, memory, counters),
            Queue::Statistics => self.statistics_sender.used(),
            Queue::Hints => self.hints.used(memory, counters),
            Queue::Reports => self.reports.used(memory, counters),
        }
    }

    /// Stops the driver because of a failure.
    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Returns the negotiated features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the number of frames in the balloon.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.inflation.held()
    }

    /// Returns the size of the balloon, in frames, that the host requests.
    #[must_use]
    pub fn target(&self) -> u64 {
        self.inflation.target()
    }

    /// Returns the state of the device and its balloon.
    #[must_use]
    pub fn status(&self) -> Status {
        let overdue = [
            (Queue::Inflate, self.inflation.is_overdue()),
            (Queue::Reports, self.reports.is_overdue()),
            (Queue::Hints, self.hints.is_overdue()),
        ];
        match overdue.into_iter().find(|&(_, overdue)| overdue) {
            _ if self.failure.is_some() => {
                self.failure.map_or(self.inflation.status(), Status::Failed)
            }
            Some((queue, _)) => Status::Pending(Pending::NoAnswer(queue)),
            None => self.inflation.status(),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
