//! Contains the state machine of the driver, which derives the next request from the device's
//! configuration and answers.

use super::config::{Config, RawConfig};
use super::config_error::ConfigError;
use super::features::Features;
use super::in_flight::{InFlight, Purpose};
use super::leftover::Leftover;
use super::memory::Memory;
use super::reachable::Reachable;
use super::reason::Reason;
use super::refused::RefusedRange;
use super::request::{Request, RequestKind};
use super::resolution::Resolution;
use super::status::{Failure, Pending, Statistics, Status};
use super::walk::BlockWalk;
use crate::backoff::Backoff;
use core::time::Duration;
use hotmem::geometry::FRAME_SHIFT;
use hotmem::{Bytes, Pfn, PfnRange, Progress};

/// The driver of one device. It does no I/O: [`step`](Driver::step) returns what to do.
///
/// ```
/// use core::time::Duration;
/// use hotmem_virtio::mem::{Driver, Memory, RawConfig, Request, Step};
///
/// trait Device {
///     fn config(&self) -> RawConfig;
///     /// Puts the request on the queue, with room for an answer.
///     fn send(&mut self, request: [u8; Request::SIZE]);
///     /// Takes the answer off the queue: the bytes that the device used.
///     fn answer(&mut self) -> Option<[u8; 10]>;
/// }
///
/// /// Call this when the device interrupts, and at the time that the last call returned.
/// fn poll(driver: &mut Driver, device: &mut impl Device, memory: &mut impl Memory,
///         now: Duration) -> Step {
///     loop {
///         let answer = device.answer();
///         let answer = answer.as_ref().map(|bytes| &bytes[..]);
///         match driver.step(now, &device.config(), answer, memory) {
///             Step::Ready(Ok(request)) => device.send(request.to_bytes()),
///             Step::Working => {}
///             rest => return rest,
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Driver {
    pub(super) config: Config,
    /// The part of the region that the memory manager can use.
    pub(super) reachable: Reachable,
    pub(super) leftover: Leftover,
    pub(super) plugged_frames: u64,
    /// The frame below which all memory of the region is plugged.
    pub(super) plugged_below: Pfn,
    pub(super) activity: Activity,
    pub(super) in_flight: Option<InFlight>,
    pub(super) direction_in_preparation: Option<Direction>,
    pub(super) refused: RefusedRange,
    backoff: Backoff,
    /// Whether the memory manager refused permanently, so that the driver does nothing until the
    /// requested size changes.
    is_blocked: bool,
    /// The number of changes of the requested size since the last progress.
    target_changes: u8,
    /// How often `plugged_size` has disagreed since the requested size was last reached.
    pub(super) disagreements: u8,
    pub(super) status: Status,
    pub(super) statistics: Statistics,
}

/// The progress of the driver.
///
/// If a request is [ready](Progress::Ready), put it on the queue and step the driver again, with
/// the device's answer as soon as the device has answered. At most one request is on the queue, and
/// its buffers belong to the device until the device has answered, however long that takes. If the
/// driver is pending, step it at the time that it returns. Step it earlier, and also if it is idle,
/// when the device interrupts because of an answer or a new configuration. A failure stops the driver;
/// plugged memory stays usable.
pub type Step = Progress<Result<Request, Failure>, Duration>;

/// The activity of the driver between requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activity {
    /// Announcing the region to the memory manager.
    Announcing,
    /// Unplugging all memory that was plugged before the driver started.
    Clearing,
    /// Finding out which blocks are plugged.
    Synchronising(BlockWalk),
    /// Finding out the state of a prepared range, because the effect of its UNPLUG is unknown.
    Resolving(Resolution),
    /// Plugging or unplugging towards the requested size.
    Resizing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Plug,
    Unplug,
}

/// The reason why the driver cannot send a request now. It determines the driver's status and when the
/// driver tries again.
pub(super) enum Halt {
    /// Step again, because there is work that does not need the device.
    PollAgain,
    /// Try again later.
    RetryLater(Pending),
    /// Do not try again until the requested size changes.
    Blocked(Reason),
    /// Stop the driver.
    Fail(Failure),
}

/// The time after which an answer is overdue. The driver reports that, and still accepts the
/// answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// The number of changes of the requested size, without progress in between, that the driver
/// follows at once.
const MAX_TARGET_CHANGES: u8 = 32;

impl Driver {
    /// Makes a driver for the device with this configuration and these negotiated features.
    ///
    /// # Errors
    /// The configuration is invalid. The error names the first invalid field.
    pub fn new(config: &RawConfig, features: Features) -> Result<Driver, ConfigError> {
        let config = Config::new(config, features)?;
        Ok(Driver {
            config,
            reachable: config.managed().into(),
            leftover: Leftover::default(),
            plugged_frames: 0,
            plugged_below: Pfn::ZERO,
            activity: Activity::Announcing,
            in_flight: None,
            direction_in_preparation: None,
            refused: RefusedRange::NONE,
            backoff: Backoff::default(),
            is_blocked: false,
            target_changes: 0,
            disagreements: 0,
            status: Status::Synchronising,
            statistics: Statistics::default(),
        })
    }

    /// Continues up to the next request or the next decision of the caller.
    ///
    /// `now` is the time since any fixed moment, and may jump. `config` must be read after `answer`
    /// was taken from the queue. `answer` holds the bytes of the device's answer to the last
    /// [request](Step), if the device has answered since the last call. Answers without a request
    /// are counted and ignored.
    ///
    /// One call prepares or completes at most one range, so it costs one call of [`Memory`]. `step`
    /// may be called from any context in which `memory` can be used, and takes no locks.
    pub fn step<M: Memory>(
        &mut self,
        now: Duration,
        config: &RawConfig,
        answer: Option<&[u8]>,
        memory: &mut M,
    ) -> Step {
        let result = self.advance(now, config, answer, memory);
        match result {
            Ok((request, purpose)) => {
                self.in_flight =
                    Some(InFlight { request, purpose, waiting_since: None, is_overdue: false });
                self.statistics.requests = self.statistics.requests.wrapping_add(1);
                Step::Ready(Ok(request))
            }
            Err(NoRequest::Return(step)) => step,
            Err(NoRequest::Halt(halt)) => self.halt(now, halt, memory),
        }
    }

    fn advance<M: Memory>(
        &mut self,
        now: Duration,
        config: &RawConfig,
        answer: Option<&[u8]>,
        memory: &mut M,
    ) -> Result<(Request, Purpose), NoRequest> {
        if let Some(bytes) = answer
            && let Err(halt) = self.handle_answer(bytes, memory)
        {
            // Only record the wait here, because the new configuration, which is read below, may
            // end it.
            self.halt(now, halt, memory);
        }
        if let Status::Failed(failure) = self.status {
            return Err(NoRequest::Return(Step::Ready(Err(failure))));
        }
        self.observe(now, config)?;
        if let Some(wait) = self.wait_for_answer(now) {
            return Err(NoRequest::Return(wait));
        }
        if let Some(until) = self.backoff.wait_end(now) {
            return Err(NoRequest::Return(Step::Pending(until)));
        }
        if self.is_blocked {
            return Err(NoRequest::Return(Step::Idle));
        }
        Ok(match self.activity {
            Activity::Announcing => self.announce(memory)?,
            Activity::Clearing => (Request::unplug_all(self.config.region()), Purpose::Clear),
            Activity::Synchronising(walk) => self.synchronise(walk, memory)?,
            Activity::Resolving(resolution) => self.resolve(resolution)?,
            Activity::Resizing => self.resize(memory)?,
        })
    }

    /// Reads the new configuration.
    fn observe(&mut self, now: Duration, raw: &RawConfig) -> Result<(), Halt> {
        let config = self.config.updated(raw).map_err(|e| Halt::Fail(Failure::Config(e)))?;
        let target = |c: &Config| (c.requested(), c.usable());
        let changed = target(&config) != target(&self.config);
        self.config = config;
        if !changed {
            return Ok(());
        }
        self.is_blocked = false;
        self.refused = RefusedRange::NONE;
        if self.target_changes < MAX_TARGET_CHANGES {
            self.target_changes += 1;
            self.backoff.reset();
            self.end_pending();
        } else if self.backoff.wait_end(now).is_none() {
            return Err(Halt::RetryLater(Pending::TargetUnsteady));
        }
        Ok(())
    }

    /// Continues the wait for the device's answer. Returns the time of the next check, or `None` if no
    /// request is outstanding.
    fn wait_for_answer(&mut self, now: Duration) -> Option<Step> {
        let sent = self.in_flight.as_mut()?;
        // A clock that was set back must not delay the timeout.
        let since = sent.waiting_since.map_or(now, |since| since.min(now));
        sent.waiting_since = Some(since);
        let deadline = since.saturating_add(ANSWER_TIME);
        if now < deadline && !sent.is_overdue {
            return Some(Step::Pending(deadline));
        }
        if !sent.is_overdue {
            sent.is_overdue = true;
            self.statistics.overdue_requests = self.statistics.overdue_requests.wrapping_add(1);
            self.status = Status::Pending(Pending::NoAnswer);
        }
        Some(Step::Idle)
    }

    pub(super) fn start_walk(&mut self, walk: BlockWalk) {
        self.statistics.resyncs = self.statistics.resyncs.wrapping_add(1);
        self.activity = Activity::Synchronising(walk);
        self.status = Status::Synchronising;
    }

    /// Records progress: earlier failures no longer count.
    pub(super) fn record_progress(&mut self) {
        if matches!(self.status, Status::Failed(_)) {
            return;
        }
        self.backoff.reset();
        self.target_changes = 0;
        self.status = self.working_status();
    }

    /// Ends the pending state.
    pub(super) fn end_pending(&mut self) {
        if let Status::Pending(_) = self.status {
            self.status = self.working_status();
        }
    }

    fn working_status(&self) -> Status {
        match self.activity {
            Activity::Announcing | Activity::Clearing | Activity::Synchronising(_) => {
                Status::Synchronising
            }
            Activity::Resolving(resolution) if resolution.is_recovery => Status::Synchronising,
            Activity::Resolving(_) | Activity::Resizing => Status::Resizing,
        }
    }

    /// Stops the driver, and lets the next step report the failure. Returns `failure`, or the
    /// earlier failure if the driver had failed before.
    pub fn fail<M: Memory>(&mut self, now: Duration, failure: Failure, memory: &mut M) -> Failure {
        match self.halt(now, Halt::Fail(failure), memory) {
            Step::Ready(Err(first)) => first,
            _ => failure,
        }
    }

    /// Records why the driver sends no request. Returns the result of the step.
    fn halt<M: Memory>(&mut self, now: Duration, halt: Halt, memory: &mut M) -> Step {
        if let Status::Failed(failure) = self.status {
            return Step::Ready(Err(failure));
        }
        match halt {
            Halt::PollAgain => Step::Working,
            Halt::RetryLater(reason) => {
                self.statistics.postponed_operations =
                    self.statistics.postponed_operations.wrapping_add(1);
                self.backoff.start_wait(now);
                if self.backoff.must_be_reported() {
                    self.status = Status::Pending(reason);
                }
                self.backoff.wait_end(now).map_or(Step::Working, Step::Pending)
            }
            Halt::Blocked(reason) => {
                self.is_blocked = true;
                self.status = Status::Pending(Pending::Memory(reason));
                Step::Idle
            }
            Halt::Fail(failure) => {
                self.cancel(memory);
                self.status = Status::Failed(failure);
                Step::Ready(Err(failure))
            }
        }
    }

    pub(super) fn cancel<M: Memory>(&mut self, memory: &mut M) {
        if self.direction_in_preparation.take().is_some() {
            memory.cancel();
        }
    }

    pub(super) fn request(&self, kind: RequestKind, range: PfnRange) -> Result<Request, Halt> {
        Request::new(kind, range, self.config.block_frames())
            .ok_or(Halt::Fail(Failure::WrongRange(range)))
    }

    /// Returns the last configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the plugged size that follows from the device's answers.
    #[must_use]
    pub fn plugged(&self) -> Bytes {
        Bytes(self.plugged_frames << FRAME_SHIFT)
    }

    /// Returns the state of the device and its memory.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns whether the driver has stopped because of a failure.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.status, Status::Failed(_))
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}

/// The result of a step that sends no request.
pub(super) enum NoRequest {
    Return(Step),
    /// The result is that of [`Driver::halt`].
    Halt(Halt),
}

impl From<Halt> for NoRequest {
    fn from(halt: Halt) -> NoRequest {
        NoRequest::Halt(halt)
    }
}

/// Returns the first `frames` frames of `range`, or all of `range` if it is shorter.
pub(super) fn first_frames(range: PfnRange, frames: u64) -> PfnRange {
    let end = range.start().checked_add(frames).unwrap_or(range.end());
    range.split_at(end).0
}
