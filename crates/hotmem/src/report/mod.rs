//! Implements free page reporting: gives free memory to the host, and keeps it free.
//!
//! The reporter needs no work list: the words that the allocator keeps anyway say which pageblocks
//! are `free` and not `reported`, and the tree finds them. A reporter claims such pageblocks, as an
//! allocation does, hands them to a *back end* (a balloon device's queue, `madvise`) in batches,
//! and publishes them again, marked `reported`. The next claim clears the mark. So memory that was
//! just added, holes and any number of nodes need no special treatment, and the reporter need not
//! be notified of a removal.
//!
//! The reporter has no thread, no timer and no I/O: the kernel calls [`Reporter::step`] and does
//! what it returns. While nothing becomes free, the reporter is [`Step::Idle`], which costs
//! nothing; the first free after that calls [`Platform::wake_reporter`].
//!
//! Memory that is out cannot be allocated: a request that only this memory could satisfy fails with
//! [`Busy`](crate::AllocError::Busy). So at most a [share](Settings::share) of free memory is out
//! at one time, and the reporter asks the kernel to reset a host that does not answer for [too
//! long](Settings::patience).
//!
//! ```
//! use hotmem::report::{Contents, Reporter, Settings, Step};
//! # use hotmem::{AlwaysMapped, BootMap, BootRange, Bytes, Frames, Hotplug, OneCpu, PfnRange};
//! # use std::time::Duration;
//! # static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
//! # let layout = std::alloc::Layout::from_size_align(64 << 20, 4096)?;
//! # // SAFETY: it is a layout of some bytes.
//! # let base = unsafe { std::alloc::alloc_zeroed(layout) };
//! # let ram = [BootRange { start: 0, len: Bytes::mib(64) }];
//! # // SAFETY: all of it is there, and nobody else uses it.
//! # let mut hotplug = unsafe {
//! #     let mapping = AlwaysMapped::new(base, PfnRange::from_bytes(0, Bytes::mib(64))?);
//! #     Hotplug::bootstrap(&FRAMES, mapping, &BootMap::of_ram(&ram))?
//! # };
//! let mut reporter = Reporter::new(&FRAMES, Settings::EAGER, Contents::Filled(0))?;
//! let now = Duration::ZERO;
//! while let Step::Ready(Ok(batch)) = reporter.step(now) {
//!     for range in batch.ranges() {
//!         // The host discards it, and says so, now or later.
//!     }
//!     reporter.reported(batch).expect("it is this machine's");
//! }
//! assert_eq!(FRAMES.counts().reported, FRAMES.counts().free_whole);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `round.rs`, `phase.rs` | decide what to do next: wait, count, make a round, sleep |
//! | `take.rs` | claims pageblocks to report, and publishes them again |
//! | `batch.rs`, `settings.rs` | a batch for the host; how soon and how much the reporter reports |
//! | `contents.rs` | sets the contents of free memory |

mod batch;
mod contents;
mod phase;
mod round;
mod settings;
mod take;

pub use crate::frames::Contents;
pub use batch::{Batch, MAX_BATCH};
pub use settings::Settings;

use crate::frames::Frames;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::progress::Progress;
use crate::token::Token;
use core::fmt;
use core::time::Duration;
use phase::Phase;

/// The reporter of a machine, of which there is one. The kernel chooses its own lock around it; the
/// allocator needs no lock meanwhile.
pub struct Reporter<'f, P: Platform> {
    frames: &'f Frames<P>,
    /// How the reporter reports. The kernel can change it at any time; a change takes effect in the
    /// next step.
    pub settings: Settings,
    /// The settings of the last step.
    last: Settings,
    phase: Phase,
    /// No batch is sent before this time, to keep the rate.
    not_before: Duration,
    /// Pageblocks that are out for reporting.
    out: u64,
    /// The start of the host's present silence: its last answer, or the first batch that was sent
    /// when no other was out. `None` stands for the time of the next step.
    heard: Option<Duration>,
    /// The number of refusals in a row.
    refusals: u32,
    /// Whether the CPUs' hints were examined since the reporter was last idle.
    hints_seen: bool,
    done: Statistics,
    /// The number of pageblocks that the host had when this reporter was created, plus the number
    /// that were taken from the host before that. It wraps.
    before: u64,
}

/// The progress of a reporter.
///
/// A batch that is [ready](Progress::Ready) is to be handed to the host. The next step may come
/// before the host has answered. The reporter waits until a time, unless a batch comes back or
/// [`Platform::wake_reporter`] is called before that. It is idle until that call, or because it is
/// off: the kernel switched it off, or the host refused too often in a row.
pub type Step = Progress<Result<Batch, Unanswered>, Duration>;

/// Memory is out, and the host has been silent for [`Settings::patience`]: reset the host's device,
/// then call [`Reporter::reset`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered;

/// Statistics of a reporter, in pageblocks (2 MiB) unless a field says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Batches that were handed out.
    pub batches: u64,
    /// Pageblocks whose RAM the host has taken. A pageblock counts each time.
    pub reported: u64,
    /// Pageblocks that were allocated again since they were reported, by this reporter or an
    /// earlier one. Pageblocks that were isolated do not count: their memory may have been
    /// unplugged.
    pub refaulted: u64,
    /// Batches that the host refused.
    pub refused: u64,
}

/// The reason why a reporter could not be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReporterError {
    /// The machine has one already.
    AlreadyThere,
    /// The kernel relies on the contents of free memory, and the host would leave other contents
    /// there.
    WouldSpoil {
        /// The contents that the kernel relies on.
        relied_on: Contents,
        /// The contents that the host leaves.
        after: Contents,
    },
}

impl<'f, P: Platform> Reporter<'f, P> {
    /// Creates the reporter of this machine, switched on. `after` is what memory holds after the
    /// host has taken it.
    ///
    /// A virtio-balloon device leaves zeroes or the old contents. If `PAGE_POISON` was negotiated,
    /// it leaves only `poison_val` or the old contents (virtio 1.3, 5.5.6.7). So a kernel that
    /// fills free memory negotiates `PAGE_POISON` with the value that it fills with, and passes
    /// that value as `after`.
    ///
    /// Memory that an earlier reporter left out is still out, and is freed with its batches or by
    /// [`reset`](Self::reset). A reporter that is forgotten instead of dropped stays the machine's
    /// reporter permanently.
    ///
    /// Cost: O(sections) of online memory, once.
    ///
    /// # Errors
    /// [`ReporterError`].
    pub fn new(
        frames: &'f Frames<P>,
        settings: Settings,
        after: Contents,
    ) -> Result<Reporter<'f, P>, ReporterError> {
        let relied_on = frames.contents();
        if relied_on != Contents::Undefined && relied_on != after {
            return Err(ReporterError::WouldSpoil { relied_on, after });
        }
        if !frames.wakeup().take() {
            return Err(ReporterError::AlreadyThere);
        }
        let counts = frames.counts();
        let mut reporter = Reporter {
            frames,
            settings,
            last: settings,
            phase: Phase::Resting,
            not_before: Duration::ZERO,
            out: counts.reporting / PAGEBLOCK_FRAMES as u64,
            heard: None,
            refusals: 0,
            hints_seen: false,
            done: Statistics::default(),
            before: frames
                .wakeup()
                .withdrawn()
                .wrapping_add(counts.reported / PAGEBLOCK_FRAMES as u64),
        };
        reporter.set_on(true);
        Ok(reporter)
    }

    /// Does a bounded amount of work and returns what to do next. `now` is the time since any fixed
    /// moment.
    ///
    /// Context: any that may take a few microseconds. Cost: reads up to 64 sections, besides those
    /// that CPUs allocate from, whatever the size of the machine.
    #[must_use = "a batch stays isolated until it comes back"]
    pub fn step(&mut self, now: Duration) -> Step {
        if self.settings != self.last {
            self.last = self.settings;
            self.count_again();
        }
        if self.out == 0 {
            return self.step_on(now);
        }
        // If the clock ran backwards, the deadline must not move away for ever.
        let heard = self.heard.map_or(now, |heard| heard.min(now));
        self.heard = Some(heard);
        let deadline = heard.saturating_add(self.settings.patience);
        if now >= deadline {
            return Step::Ready(Err(Unanswered));
        }
        match self.step_on(now) {
            Step::Pending(at) => Step::Pending(at.min(deadline)),
            Step::Idle => Step::Pending(deadline),
            step => step,
        }
    }

    fn step_on(&mut self, now: Duration) -> Step {
        if self.is_on() { self.go_on(now) } else { Step::Idle }
    }

    /// Frees the memory of this batch, whose RAM the host has taken. It is allocated last.
    ///
    /// # Errors
    /// The batch, if another machine made it.
    pub fn reported(&mut self, batch: Batch) -> Result<(), Batch> {
        let batch = batch.of(self.frames)?;
        (self.refusals, self.heard) = (0, None);
        self.done.reported += self.come_back(&batch, true);
        Ok(())
    }

    /// Frees the memory of this batch, which the host has refused. The reporter tries again after a
    /// pause, until there are too many refusals in a row.
    ///
    /// # Errors
    /// The batch, if another machine made it.
    pub fn failed(&mut self, batch: Batch, now: Duration) -> Result<(), Batch> {
        let batch = batch.of(self.frames)?;
        self.refusals = self.refusals.saturating_add(1);
        self.done.refused += 1;
        self.heard = None;
        self.come_back(&batch, false);
        if self.refusals >= self.settings.tries {
            self.frames.wakeup().switch_off();
        } else {
            let pause = self.settings.pause_after(self.refusals);
            self.phase = Phase::Waiting(now.saturating_add(pause));
        }
        Ok(())
    }

    /// Frees everything that is out, unreported, including lost batches and those of an earlier
    /// reporter. Call this after the host was reset and no longer touches any memory that it was
    /// given. Batches that still exist are void. Returns how many pageblocks it freed.
    ///
    /// Cost: O(sections).
    pub fn reset(&mut self) -> u64 {
        self.frames.wakeup().next_generation();
        self.out = 0;
        self.refusals = 0;
        self.reclaim()
    }

    /// Switches the reporter on or off. Batches that are out when it is switched off are given back
    /// as usual.
    pub fn set_on(&mut self, on: bool) {
        if !on {
            self.frames.wakeup().switch_off();
        } else if !self.is_on() {
            self.refusals = 0;
            self.phase = Phase::Resting;
            self.frames.wakeup().switch_on();
            self.find_all();
        }
    }

    /// Returns whether the reporter is switched on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.frames.wakeup().is_on()
    }

    /// Returns what the reporter has done so far. Cost: O(sections).
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let still = self.frames.counts().reported / PAGEBLOCK_FRAMES as u64;
        let not_used = still.wrapping_add(self.frames.wakeup().withdrawn());
        // The difference is below zero while an operation is in flight.
        let used = self.before.wrapping_add(self.done.reported).wrapping_sub(not_used);
        Statistics { refaulted: used.cast_signed().max(0).cast_unsigned(), ..self.done }
    }
}

impl<P: Platform> Drop for Reporter<'_, P> {
    /// Switches the reporter off. What is out stays isolated: see [`Reporter::reset`].
    fn drop(&mut self) {
        self.frames.wakeup().switch_off();
        self.frames.wakeup().leave();
    }
}

impl<P: Platform> fmt::Debug for Reporter<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("phase", &self.phase)
            .field("out", &self.out)
            .field("refusals", &self.refusals)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ReporterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReporterError::AlreadyThere => f.write_str("there is a reporter already"),
            ReporterError::WouldSpoil { relied_on, after } => {
                write!(f, "free memory must hold {relied_on}, and the host leaves {after}")
            }
        }
    }
}

impl core::error::Error for ReporterError {}
