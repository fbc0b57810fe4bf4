//! Contains the state machine of the driver, which steps the four services of the device one after
//! another.

use super::config::RawConfig;
use super::features::Features;
use super::hints::Hints;
use super::in_flight::DeviceLimits;
use super::inflation::Inflation;
use super::memory::Memory;
use super::message::{Answer, Ranges};
use super::queues::Queue;
use super::reports::Reports;
use super::statistics_sender::StatisticsSender;
use super::status::{Counters, Failure, Pending, Status};
use super::step::Step;
use crate::backoff::earlier;
use core::time::Duration;

/// The driver of one device. It does no I/O: [`step`](Driver::step) returns what to do.
///
/// ```
/// use core::time::Duration;
/// use hotmem_virtio::balloon::{Action, Answer, Driver, Memory, Message, RawConfig, Step};
///
/// trait Device {
///     fn config(&self) -> RawConfig;
///     fn set_actual(&mut self, frames: u32);
///     /// Puts the request on its queue.
///     fn send(&mut self, message: Message);
///     /// Takes a used buffer off a queue, and returns the queue and the number of written bytes.
///     fn used(&mut self) -> Option<Answer>;
/// }
///
/// /// Call this when the device interrupts and when memory was freed. If the last call returned
/// /// `Step::Pending(time)`, call it at that time, too.
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
    limits: DeviceLimits,
    /// Whether the driver has not stepped yet.
    is_new: bool,
}

impl Driver {
    /// Makes a driver for a device that was just reset and has negotiated these features. At its
    /// first step, the driver [takes back](Memory::device_reset) all memory that an earlier driver
    /// gave to the device.
    #[must_use]
    pub fn new(features: Features, config: &RawConfig) -> Driver {
        let limits = DeviceLimits::with_answer_timeout(Self::DEFAULT_ANSWER_TIMEOUT);
        Driver::with_limits(features, config, limits)
    }

    /// Makes a driver with these limits of the device.
    pub(super) fn with_limits(
        features: Features,
        config: &RawConfig,
        limits: DeviceLimits,
    ) -> Driver {
        Driver {
            features,
            inflation: Inflation::new(features, config.num_pages),
            reports: Reports::default(),
            hints: Hints::default(),
            statistics_sender: StatisticsSender::default(),
            failure: None,
            counters: Counters::default(),
            limits,
            is_new: true,
        }
    }

    /// The default time that a device may take to answer; see
    /// [`with_answer_timeout`](Self::with_answer_timeout).
    pub const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

    /// Sets the time that the device may take to answer before it must be reset.
    #[must_use]
    pub fn with_answer_timeout(mut self, answer_timeout: Duration) -> Driver {
        self.limits.answer_timeout = answer_timeout;
        self
    }

    /// Sets the maximal number of ranges in a report to `max`, limited to [`Ranges::MAX_LEN`].
    #[must_use]
    pub fn with_max_report_ranges(mut self, max: usize) -> Driver {
        self.limits.max_report_ranges = max.clamp(1, Ranges::MAX_LEN);
        self
    }

    /// Continues the counters of `previous`, the driver of the same device before its reset, and
    /// counts the reset.
    #[must_use]
    pub fn with_counters_of(mut self, previous: &Driver) -> Driver {
        self.counters = previous.counters;
        self.count_reset();
        self
    }

    /// Counts a reset of the device.
    pub(super) fn count_reset(&mut self) {
        self.counters.resets = self.counters.resets.wrapping_add(1);
    }

    /// Begins again, after a reset of the device, as a new driver with the same features. The
    /// counters continue. The fields are written one by one, because a second driver on the stack
    /// would take more of it than a kernel may have.
    #[cfg(feature = "virtio-drivers")]
    pub(super) fn restart(&mut self, config: &RawConfig, limits: DeviceLimits) {
        let Driver {
            features,
            inflation,
            reports,
            hints,
            statistics_sender,
            failure,
            counters: _,
            limits: own_limits,
            is_new,
        } = self;
        *inflation = Inflation::new(*features, config.num_pages);
        *reports = Reports::default();
        *hints = Hints::default();
        *statistics_sender = StatisticsSender::default();
        *failure = None;
        *own_limits = limits;
        *is_new = true;
    }

    /// Forgets the balloon and all requests, because the device was reset. A driver that has failed
    /// stays so.
    #[cfg(feature = "virtio-drivers")]
    pub(super) fn forget_requests(&mut self, config: &RawConfig) {
        let failure = self.failure;
        self.restart(config, self.limits);
        self.failure = failure;
    }

    /// Returns the reason why the driver has stopped, or `None` if it has not.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Decides what to do next. `used` says on which queue the device has used the outstanding
    /// buffer. Cost: one or two calls of [`Memory`].
    pub fn step<M: Memory>(
        &mut self,
        now: Duration,
        config: &RawConfig,
        used: Option<Answer>,
        memory: &mut M,
    ) -> Step {
        if core::mem::take(&mut self.is_new) {
            memory.device_reset();
        }
        if let Some(answer) = used
            && !self.handle_answer(answer, memory)
        {
            self.fail(Failure::Stray(answer.queue));
        }
        if let Some(failure) = self.failure {
            return Step::Ready(Err(failure));
        }
        self.inflation.observe(now, config.num_pages);
        self.hints.observe(config);

        let (mut until, mut steps_again) = (None, false);
        let has = |feature| self.features.contains(feature);
        let (has_reports, has_hints, has_statistics) =
            (has(Features::PAGE_REPORTING), has(Features::FREE_PAGE_HINT), has(Features::STATS_VQ));
        for service in 0..4 {
            let counters = &mut self.counters;
            let step = match service {
                0 if has_reports => self.reports.next(now, self.limits, memory, counters),
                1 => self.inflation.next(now, self.limits, memory, counters),
                2 if has_hints => self.hints.next(now, self.limits, memory, counters),
                3 if has_statistics => self.statistics_sender.next(now, memory, counters),
                _ => Step::Idle,
            };
            match &step {
                Step::Working => steps_again = true,
                Step::Pending(time) => until = earlier(until, Some(*time)),
                Step::Idle => {}
                Step::Ready(result) => {
                    if let Err(failure) = result {
                        self.fail(*failure);
                    }
                    return step;
                }
            }
        }
        match until {
            _ if steps_again => Step::Working,
            Some(until) if until <= now => Step::Working,
            Some(until) => Step::Pending(until),
            None => Step::Idle,
        }
    }

    /// Handles an answer of the device. Returns whether a request was outstanding on its queue.
    fn handle_answer<M: Memory>(&mut self, answer: Answer, memory: &mut M) -> bool {
        let counters = &mut self.counters;
        match answer.queue {
            Queue::Inflate => {
                let has_bitmap = self.features.contains(Features::DEVICE_INIT_ON_INFLATE);
                let answer = if has_bitmap { answer } else { answer.queue.into() };
                self.inflation.handle_inflate_answer(&answer, memory, counters)
            }
            Queue::Deflate => self.inflation.handle_deflate_answer(memory, counters),
            Queue::Statistics => self.statistics_sender.handle_answer(),
            Queue::Hints => self.hints.handle_answer(memory, counters),
            Queue::Reports => {
                let has_length = self.features.contains(Features::DEVICE_INIT_REPORTED);
                let initialised_bytes = if has_length { answer.written } else { 0 };
                self.reports.handle_answer(initialised_bytes, memory, counters)
            }
        }
    }

    /// Stops the driver because of a failure.
    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Returns the limits of the device.
    #[cfg(feature = "virtio-drivers")]
    pub(super) fn limits(&self) -> DeviceLimits {
        self.limits
    }

    /// Returns the negotiated features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the number of frames in the balloon.
    #[must_use]
    pub fn inflated_frames(&self) -> u64 {
        self.inflation.inflated_frames()
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
