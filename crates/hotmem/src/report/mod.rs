//! Free page reporting: memory that is free goes back to the host by itself, and stays free.
//!
//! The work list is a question asked of words that the allocator keeps anyway: `free` and not
//! `reported`, found by the tree. A reporter claims such pageblocks, as any allocation does, hands
//! them to a *back end* (a balloon device's queue, `madvise`) in batches, and publishes them again,
//! marked `reported`; the mark goes when somebody claims them. So memory that was added a moment
//! ago, holes and any number of nodes are nothing special, and what is removed needs no notice.
//!
//! The reporter has no thread, no timer and no I/O: the kernel calls [`Reporter::step`] and does
//! what it says. While nothing becomes free it is [`Step::Idle`], which costs nothing; the first
//! free after that rings the kernel ([`Platform::wake_reporter`]).
//!
//! Memory that is out cannot be allocated: a request that only it could satisfy is told
//! [`Busy`](crate::AllocError::Busy). So no more than a [share](Settings::share) of what is free is
//! out at one time, and a host that is silent for [too long](Settings::patience) is to be reset.
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
//! let mut reporter = Reporter::new(&FRAMES, Settings::eager(), Contents::Filled(0))?;
//! let now = Duration::ZERO;
//! while let Step::Send(batch) = reporter.step(now) {
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
//! | `round.rs`, `phase.rs` | what to do next: wait, count, look round, sleep |
//! | `take.rs` | claims what is worth reporting, and gives it back |
//! | `batch.rs`, `settings.rs` | what goes to the host, and how eagerly |
//! | `contents.rs` | what free memory holds |

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
use crate::token::Token;
use core::fmt;
use core::time::Duration;
use phase::Phase;

/// The one reporter of a machine. The kernel chooses its own lock around it; the allocator goes on
/// at full speed beside it.
pub struct Reporter<'f, P: Platform> {
    frames: &'f Frames<P>,
    settings: Settings,
    phase: Phase,
    /// Not before this, so as to keep the rate.
    not_before: Duration,
    /// Ranges that the host takes in one batch.
    most_ranges: usize,
    /// Pageblocks that are out.
    out: u64,
    /// When the host answered last, or was given something after it had answered everything;
    /// `None`: since the last step.
    heard: Option<Duration>,
    /// The host's refusals in a row.
    refusals: u32,
    /// CPUs' hints were looked at since it was last idle.
    hints_seen: bool,
    done: Statistics,
    /// Pageblocks that the host had at the beginning, and that were taken from it before; wraps.
    before: u64,
}

/// What the kernel is to do next.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "without a heap there is nowhere else to put it")]
pub enum Step {
    /// Hand this to the host. The next step may come before it is back.
    Send(Batch),
    /// There is more to look at: step again soon.
    Again,
    /// Step again at this time, or sooner when a batch has come back or
    /// [`Platform::wake_reporter`] rings.
    WaitUntil(Duration),
    /// Something is out, and the host has been silent for [`Settings::patience`]: reset its device,
    /// then call [`Reporter::reset`].
    Unanswered,
    /// Nothing waits, and no timer is needed: step again when
    /// [`Platform::wake_reporter`] rings.
    Idle,
    /// It is switched off, or was by too many refusals of the host.
    Off,
}

/// What a reporter has done, in pageblocks (2 MiB) where nothing else is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Batches handed out.
    pub batches: u64,
    /// Taken by the host, each time counted.
    pub reported: u64,
    /// Of these, and of what an earlier reporter reported, taken into use again since. What was
    /// isolated, unplugged with its memory perhaps, was not.
    pub refaulted: u64,
    /// Batches that the host refused.
    pub refused: u64,
}

/// Why there is no reporter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReporterError {
    /// The machine has one already.
    AlreadyThere,
    /// The kernel relies on what free memory holds, and the host would leave something else there.
    WouldSpoil {
        /// What the kernel relies on.
        relied_on: Contents,
        /// What the host leaves.
        after: Contents,
    },
}

impl<'f, P: Platform> Reporter<'f, P> {
    /// Makes the caller the reporter of this machine, switched on. `after` is what memory holds
    /// that the host has taken.
    ///
    /// A virtio-balloon device leaves zeroes or what was there; if `PAGE_POISON` was negotiated, it
    /// leaves only `poison_val` or what was there (virtio 1.3, 5.5.6.7). So a kernel that fills
    /// free memory negotiates `PAGE_POISON` with its value, which is then `after`.
    ///
    /// What an earlier reporter left out is out still, and comes back with its batches or by
    /// [`reset`](Self::reset). One that is forgotten and not dropped is the reporter for good.
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
            phase: Phase::Resting,
            not_before: Duration::ZERO,
            most_ranges: MAX_BATCH,
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

    /// Does a bounded amount of work and says what comes next. `now` is time since anything.
    ///
    /// Context: any that may take a few microseconds. Cost: up to 64 sections are looked at,
    /// besides those that CPUs allocate from, whatever the size of the machine.
    #[must_use = "a batch stays isolated until it comes back"]
    pub fn step(&mut self, now: Duration) -> Step {
        self.step_up_to(MAX_BATCH, now)
    }

    /// The same for a host that takes at most so many ranges in one batch (at least 1), whatever
    /// the settings say.
    #[must_use = "a batch stays isolated until it comes back"]
    pub fn step_up_to(&mut self, ranges: usize, now: Duration) -> Step {
        self.most_ranges = ranges.max(1);
        if self.out == 0 {
            return self.step_on(now);
        }
        // A clock that went backwards must not put the moment off for ever.
        let heard = self.heard.map_or(now, |heard| heard.min(now));
        self.heard = Some(heard);
        let deadline = heard.saturating_add(self.settings.patience);
        if now >= deadline {
            return Step::Unanswered;
        }
        match self.step_on(now) {
            Step::WaitUntil(at) => Step::WaitUntil(at.min(deadline)),
            Step::Idle => Step::WaitUntil(deadline),
            step => step,
        }
    }

    fn step_on(&mut self, now: Duration) -> Step {
        if self.is_on() { self.go_on(now) } else { Step::Off }
    }

    /// The host has taken the memory of this batch: it is free again, and used last.
    ///
    /// # Errors
    /// The batch, if it is another machine's.
    pub fn reported(&mut self, batch: Batch) -> Result<(), Batch> {
        let batch = batch.of(self.frames)?;
        (self.refusals, self.heard) = (0, None);
        self.done.reported += self.come_back(&batch, true);
        Ok(())
    }

    /// The host has refused this batch: it is free again, and tried again after a pause, until
    /// there are too many refusals in a row.
    ///
    /// # Errors
    /// The batch, if it is another machine's.
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

    /// The host was reset and touches nothing any more that it was given. Everything that is out
    /// comes back, unreported, lost batches and those of an earlier reporter included; batches that
    /// are still about are void. Returns how many pageblocks came back.
    ///
    /// Cost: O(sections).
    pub fn reset(&mut self) -> u64 {
        self.frames.wakeup().next_generation();
        self.out = 0;
        self.refusals = 0;
        self.reclaim()
    }

    /// Switches it on or off. What is out when it is switched off comes back as always.
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

    /// Whether it is switched on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.frames.wakeup().is_on()
    }

    /// How it reports.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// From now on it reports like this.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.look_again();
    }

    /// What it has done so far. Cost: O(sections).
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let still = self.frames.counts().reported / PAGEBLOCK_FRAMES as u64;
        let not_used = still.wrapping_add(self.frames.wakeup().withdrawn());
        // Below zero while something is in flight.
        let used = self.before.wrapping_add(self.done.reported).wrapping_sub(not_used);
        Statistics { refaulted: used.cast_signed().max(0).cast_unsigned(), ..self.done }
    }
}

impl<P: Platform> Drop for Reporter<'_, P> {
    /// What is out stays isolated: see [`Reporter::reset`].
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
