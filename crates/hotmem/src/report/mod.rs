//! Implements free page reporting: gives free memory to the host, and keeps it free.
//!
//! The reporter needs no work list: the words of the allocator say which pageblocks are `free` and
//! not `reported`, and the tree finds them. A reporter claims such pageblocks, as an allocation
//! does. It returns them in batches, which the kernel hands to a *back end* (a balloon device's
//! queue, `madvise`). Then it publishes them again, marked `reported`. The next claim clears the
//! mark. So memory that was just added, holes and any number of nodes need no special treatment,
//! and a removal need not notify the reporter.
//!
//! The reporter has no thread, no timer and no I/O: the kernel calls [`Reporter::step`] and acts on
//! the [`Step`] that it returns. While no memory becomes free, the reporter is [`Step::Idle`], and
//! the kernel need not call it. The first free after that calls [`Platform::wake_reporter`].
//!
//! A batch is *reporting* from the step that returns it until the kernel returns it. Memory that is
//! reporting cannot be allocated: a request that only this memory could satisfy fails with
//! [`Busy`](crate::AllocError::Busy). So at most a [share](ReporterSettings::reporting_divisor) of free
//! memory is reporting at one time. If the host does not answer within
//! [`ReporterSettings::answer_timeout`], the reporter asks the kernel to reset the host's device.
//!
//! ```
//! use hotmem::Contents;
//! use hotmem::report::{Reporter, ReporterSettings, Step};
//! # use hotmem::{AlwaysMapped, BootRange, Bytes, Frames, Hotplug, OneCpu, PfnRange};
//! # use std::time::Duration;
//! # static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
//! # let layout = std::alloc::Layout::from_size_align(64 << 20, 4096)?;
//! # // SAFETY: the size of `layout` is not 0.
//! # let base = unsafe { std::alloc::alloc_zeroed(layout) };
//! # let ram = [BootRange { start: 0, len: Bytes::mib(64) }];
//! # // SAFETY: the RAM of the map is the memory at `base`, which nobody else uses.
//! # let mut hotplug = unsafe {
//! #     let mapping = AlwaysMapped::new(base, PfnRange::from_bytes(0, Bytes::mib(64))?);
//! #     Hotplug::bootstrap(&FRAMES, mapping, &ram)?
//! # };
//! let mut reporter = Reporter::new(&FRAMES, ReporterSettings::EAGER, Contents::Filled(0))?;
//! let now = Duration::ZERO;
//! while let Step::Ready(Ok(batch)) = reporter.step(now) {
//!     for range in &batch {
//!         // The host discards the memory of `range`, and acknowledges, now or later.
//!     }
//!     reporter.reported(batch);
//! }
//! assert_eq!(FRAMES.counts().reported, FRAMES.counts().free_whole);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `round.rs`, `phase.rs` | decide the next action: wait, count, make a round, sleep |
//! | `take.rs` | counts and claims pageblocks to report, and publishes them again |
//! | `batch.rs` | defines the batch, which is the ranges for the host |
//! | `settings.rs` | defines how soon and how much the reporter reports |
//! | `contents.rs` | sets the contents of free memory |

mod batch;
mod contents;
mod phase;
mod round;
mod settings;
mod take;

pub use batch::{Batch, MAX_BATCH};
pub use settings::ReporterSettings;

use crate::addr::PfnRange;
use crate::frames::{Contents, Frames};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::progress::Progress;
use crate::token::Token;
use core::fmt;
use core::time::Duration;
use phase::{Phase, WaitReason};

/// The reporter of an instance. An instance has at most one. Its methods take `&mut self`, so the
/// kernel puts the reporter behind a lock of its choice. The allocator needs no lock.
pub struct Reporter<'f, P: Platform> {
    frames: &'f Frames<P>,
    /// How soon and how much the reporter reports. The kernel can change this at any time; a change
    /// takes effect in the next step.
    pub settings: ReporterSettings,
    /// The settings of the last step.
    last_settings: ReporterSettings,
    phase: Phase,
    /// The time of the last batch, and its number of pageblocks. The next batch is sent after the
    /// time that these take at the maximum rate.
    last_batch: (Duration, u64),
    /// The number of pageblocks that are reporting.
    blocks_reporting: u64,
    /// The time since when the host has not answered: that of its last answer, or that of the first
    /// batch that was sent while no other batch was reporting. `None` stands for the time of the
    /// next step.
    unanswered_since: Option<Duration>,
    /// The number of refusals in a row.
    refusals: u32,
    /// Whether the pageblocks that CPUs have as hints were examined since the reporter was last
    /// idle.
    has_examined_hints: bool,
    statistics: Statistics,
    /// When this reporter was created: the number of reported pageblocks, plus the count of
    /// withdrawn ones (see `frames/wakeup.rs`). The sum wraps.
    reported_at_start: u64,
}

/// The progress of a reporter.
///
/// - [Ready](Progress::Ready) with a batch: hand the batch to the host. The next step may come
///   before the host has answered.
/// - [Ready](Progress::Ready) with [`Unanswered`]: reset the host's device.
/// - [Working](Progress::Working): call the next step when convenient.
/// - [Pending](Progress::Pending): call the next step at this time, or earlier if a batch comes
///   back or [`Platform::wake_reporter`] is called.
/// - [Idle](Progress::Idle): call the next step after [`Platform::wake_reporter`] is called. A
///   reporter is also idle while it is off: the kernel switched it off, or the host refused too
///   often in a row.
pub type Step = Progress<Result<Batch, Unanswered>, Duration>;

/// The request to reset the host's device and then call [`Reporter::reset`]: memory is reporting,
/// and the host has not answered for [`ReporterSettings::answer_timeout`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered;

/// Statistics of a reporter, in pageblocks (2 MiB) unless a field says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Batches that were sent to the host.
    pub batches: u64,
    /// Pageblocks whose RAM the host has taken. A pageblock counts each time that it is reported.
    pub reported: u64,
    /// Reported pageblocks that were allocated again, whether this reporter or an earlier one
    /// reported them. Pageblocks that were isolated do not count: their memory may have been
    /// unplugged.
    pub refaulted: u64,
    /// Batches that the host refused.
    pub refused: u64,
    /// Whether the reporter is on: the kernel has not switched it off, and the host has not refused
    /// too often in a row.
    pub is_on: bool,
}

/// The reason why a reporter could not be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReporterError {
    /// The instance has a reporter already.
    HasReporter,
    /// The kernel relies on the contents of free memory, and the host would leave other contents in
    /// it.
    ContentsDiffer {
        /// The contents that the kernel relies on.
        relied_on: Contents,
        /// The contents that the host leaves.
        after: Contents,
    },
}

impl<'f, P: Platform> Reporter<'f, P> {
    /// Creates the reporter of this instance and switches it on. `after` says what reported memory
    /// contains when it is used again.
    ///
    /// A virtio-balloon device leaves zeroes or the old contents. If `PAGE_POISON` was negotiated,
    /// the device leaves `poison_val` or the old contents (virtio 1.3, 5.5.6.7). So a kernel that
    /// fills free memory negotiates `PAGE_POISON` with the value that it fills with, and passes
    /// that value as `after`.
    ///
    /// Batches of an earlier reporter may still be reporting. Their memory is freed when the kernel
    /// gives them back, or by [`reset`](Self::reset). A reporter that is forgotten instead of
    /// dropped stays the instance's reporter permanently.
    ///
    /// Cost: O(sections) of online memory, once.
    ///
    /// # Errors
    /// [`ReporterError`].
    pub fn new(
        frames: &'f Frames<P>,
        settings: ReporterSettings,
        after: Contents,
    ) -> Result<Reporter<'f, P>, ReporterError> {
        let relied_on = frames.contents();
        if relied_on != Contents::Undefined && relied_on != after {
            return Err(ReporterError::ContentsDiffer { relied_on, after });
        }
        if !frames.wakeup().register_reporter() {
            return Err(ReporterError::HasReporter);
        }
        let counts = frames.counts();
        let mut reporter = Reporter {
            frames,
            settings,
            last_settings: settings,
            phase: Phase::Resting,
            last_batch: (Duration::ZERO, 0),
            blocks_reporting: counts.reporting / PAGEBLOCK_FRAMES as u64,
            unanswered_since: None,
            refusals: 0,
            has_examined_hints: false,
            statistics: Statistics::default(),
            reported_at_start: frames
                .wakeup()
                .withdrawn()
                .wrapping_add(counts.reported / PAGEBLOCK_FRAMES as u64),
        };
        reporter.set_on(true);
        Ok(reporter)
    }

    /// Does a bounded amount of work, and returns what the kernel must do next. `now` is the time
    /// since some fixed moment.
    ///
    /// Context: any that may take a few microseconds. Cost: reads up to 64 sections, and the
    /// sections that CPUs allocate from. The cost does not depend on the size of the machine.
    #[must_use = "a batch stays isolated until it comes back"]
    pub fn step(&mut self, now: Duration) -> Step {
        if self.settings != self.last_settings {
            self.last_settings = self.settings;
            self.count_again();
        }
        if self.blocks_reporting == 0 {
            return self.advance_if_on(now);
        }
        // Take the earlier time: if the clock ran backwards, the deadline would otherwise never
        // come.
        let unanswered_since =
            self.unanswered_since.map_or(now, |unanswered_since| unanswered_since.min(now));
        self.unanswered_since = Some(unanswered_since);
        let deadline = unanswered_since.saturating_add(self.settings.answer_timeout);
        if now >= deadline {
            return Step::Ready(Err(Unanswered));
        }
        match self.advance_if_on(now) {
            Step::Pending(at) => Step::Pending(at.min(deadline)),
            Step::Idle => Step::Pending(deadline),
            step => step,
        }
    }

    fn advance_if_on(&mut self, now: Duration) -> Step {
        if self.is_on() { self.advance(now) } else { Step::Idle }
    }

    /// Frees the memory of this batch, whose RAM the host has taken. Such memory is allocated last. If
    /// another instance made the batch, drops it: see [`Batch`].
    pub fn reported(&mut self, batch: Batch) {
        self.reported_as(batch, |_| Contents::Undefined);
    }

    /// Does the same as [`reported`](Self::reported), for a host that says what the memory contains
    /// when it is used again. `contents_of` is called with each pageblock (2 MiB) of the batch, range
    /// by range, in ascending order within a range. It returns [`Contents::Undefined`] unless the host
    /// has promised the contents of the whole pageblock. If they are zeroes, an instance that [keeps
    /// zero marks](Frames::keep_zero_marks) marks the pageblock.
    ///
    /// Do not believe a host that must not read or change the kernel's memory: what it claims to be
    /// zero may contain anything. A false promise breaks that of `keep_zero_marks`.
    ///
    /// Cost: O(pageblocks).
    pub fn reported_as(&mut self, batch: Batch, contents_of: impl FnMut(PfnRange) -> Contents) {
        let Some(batch) = batch.of_instance(self.frames) else { return };
        (self.refusals, self.unanswered_since) = (0, None);
        self.statistics.reported += self.publish_reported(&batch, contents_of);
    }

    /// Frees the memory of this batch, which the host has refused. The reporter sends other batches
    /// after a pause. After [`ReporterSettings::max_refusals`] refusals in a row, it switches itself off. If
    /// another instance made the batch, drops it: see [`Batch`].
    pub fn failed(&mut self, batch: Batch, now: Duration) {
        let Some(batch) = batch.of_instance(self.frames) else { return };
        self.refusals = self.refusals.saturating_add(1);
        self.statistics.refused += 1;
        self.unanswered_since = None;
        self.publish_refused(&batch);
        if self.refusals >= self.settings.max_refusals {
            self.frames.wakeup().switch_off();
        } else {
            self.phase = Phase::Waiting(now, WaitReason::Refused);
        }
    }

    /// Frees all memory that is reporting, including that of lost batches and of batches of an
    /// earlier reporter. The memory does not count as reported. Call this after the host's device
    /// was reset and no longer accesses any memory that it was given. All batches that still exist
    /// become void. Returns the number of pageblocks that it freed.
    ///
    /// Cost: O(sections).
    pub fn reset(&mut self) -> u64 {
        self.frames.wakeup().next_generation();
        self.blocks_reporting = 0;
        self.refusals = 0;
        self.publish_all_reporting()
    }

    /// Switches the reporter on or off. The kernel gives back the batches that are reporting even
    /// if the reporter is off.
    pub fn set_on(&mut self, on: bool) {
        if !on {
            self.frames.wakeup().switch_off();
        } else if !self.is_on() {
            self.refusals = 0;
            self.phase = Phase::Resting;
            self.frames.wakeup().switch_on();
            self.make_all_findable();
        }
    }

    /// Returns whether the reporter is switched on.
    fn is_on(&self) -> bool {
        self.frames.wakeup().is_on()
    }

    /// Returns the statistics of the reporter. Cost: O(sections).
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let still_reported = self.frames.counts().reported / PAGEBLOCK_FRAMES as u64;
        let not_used = still_reported.wrapping_add(self.frames.wakeup().withdrawn());
        // While an operation is in flight, the difference may be below 0 for a moment.
        let allocated_again =
            self.reported_at_start.wrapping_add(self.statistics.reported).wrapping_sub(not_used);
        let refaulted = allocated_again.cast_signed().max(0).cast_unsigned();
        Statistics { refaulted, is_on: self.is_on(), ..self.statistics }
    }
}

impl<P: Platform> Drop for Reporter<'_, P> {
    /// Switches the reporter off. Memory that is reporting stays isolated: see [`Reporter::reset`].
    fn drop(&mut self) {
        self.frames.wakeup().switch_off();
        self.frames.wakeup().unregister_reporter();
    }
}

impl<P: Platform> fmt::Debug for Reporter<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("phase", &self.phase)
            .field("out", &self.blocks_reporting)
            .field("refusals", &self.refusals)
            .field("done", &self.statistics)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ReporterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReporterError::HasReporter => f.write_str("the instance has a reporter already"),
            ReporterError::ContentsDiffer { relied_on, after } => {
                write!(f, "free memory must contain {relied_on}, and the host leaves {after}")
            }
        }
    }
}

impl core::error::Error for ReporterError {}
