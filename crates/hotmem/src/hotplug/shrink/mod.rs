//! Takes as much of a range offline as possible, from the top down, and prepares each run for
//! removal.
//!
//! A shrink leaves offline what it has taken offline, even if the rest is blocked, and reports the
//! first blocker.

mod isolate;
mod options;
mod ready;
mod untried;
mod wait;

pub use options::ShrinkOptions;

use super::drain::{DrainProgress, ParkedWindow, Window};
use super::poll::Poll;
use super::{Budget, Hotplug, Removal};
use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, BlockerKind};
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT};
use crate::hooks::Hooks;
use crate::isolate::Isolation;
use crate::mapping::Map;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::progress::Progress;
use core::fmt;
use untried::Untried;

/// A request to take memory offline for removal, the highest memory first. It skips boot memory,
/// which is never removed.
///
/// Before the shrink migrates anything, it isolates all adjacent memory that it will take, as far as
/// there is enough free memory elsewhere for the frames in use. So nothing is migrated into memory
/// that is still to be taken, and each allocation moves once.
///
/// Each [`Progress::Ready`] is a run that the caller can offer to the device. The shrink belongs to
/// the instance that polls it first. Call [`cancel`](Self::cancel) for a shrink that is no longer
/// needed. If a shrink is dropped or forgotten before it is done, its memory stays isolated, or
/// offline and held, and stays counted.
#[must_use = "a request does nothing until it is polled"]
pub struct Shrink<'f, P> {
    /// The instance that polled the shrink first.
    instance: Option<InstanceId>,
    /// The range that the shrink takes memory from.
    range: PfnRange,
    /// The part of `range` that the shrink has not isolated or skipped yet.
    untried: Untried,
    /// The smallest run that the platform can take, in frames.
    unit: u64,
    /// The number of frames still to take.
    frames_left: u64,
    /// The largest run that the platform can take at one time, in frames.
    max_run: u64,
    /// The run that is offline and held, and that no [`Removal`] has yet.
    ready_run: PfnRange,
    /// The window that is being drained.
    window: Option<Window<'f, P>>,
    /// The memory below `window` that is isolated and is still to be drained.
    isolated: Option<Isolation<'f, P>>,
    /// The number of frames that were in use in `isolated` when it was isolated.
    live_frames: u64,
    /// Whether more memory may be added to `isolated`.
    isolates_more: bool,
    /// The unit that the shrink has isolated while it is pending.
    parked_window: Option<ParkedWindow<'f, P>>,
    is_persistent: bool,
    /// The start of the last unit that the shrink has isolated while it was pending.
    last_kept_unit: Pfn,
    /// [`Hooks::discard`] was already called for the memory above this frame.
    discarded_above: Pfn,
    blocker: Option<Blocker>,
}

impl<'f, P> Shrink<'f, P> {
    /// Makes a request to take memory as `options` say. Nothing happens before the request is
    /// polled.
    pub fn new(options: impl Into<ShrinkOptions>) -> Shrink<'f, P> {
        let ShrinkOptions { within, frames, unit, max_run_frames, is_persistent } = options.into();
        let unit = unit.clamp(PAGEBLOCK_FRAMES as u64, PFN_LIMIT).next_power_of_two();
        let within = within.align_inward(unit);
        Shrink {
            instance: None,
            range: within,
            untried: Untried::all(within, unit),
            unit,
            frames_left: frames / unit * unit,
            max_run: (max_run_frames / unit * unit).max(unit),
            ready_run: PfnRange::EMPTY,
            window: None,
            isolated: None,
            live_frames: 0,
            isolates_more: false,
            parked_window: None,
            is_persistent,
            last_kept_unit: Pfn::LIMIT,
            discarded_above: Pfn::LIMIT,
            blocker: None,
        }
    }
}

impl<'f, P: Platform> Shrink<'f, P> {
    /// Continues the shrink. A run that is [ready](Progress::Ready) is drained, offline and
    /// unmapped: offer it to the device, then commit or abandon the removal. The shrink is over
    /// once it is idle, or pending for the first blocker that it met: then polling it again changes
    /// nothing, unless the shrink is [persistent](ShrinkOptions::is_persistent). If it is polled on
    /// another instance than its own, it is pending for [`BlockerKind::Foreign`], and not over.
    ///
    /// Cost: up to the budget, O(sections) of the free memory and O(pageblocks) of the other
    /// memory.
    pub fn poll<M: Map>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        budget: Budget,
    ) -> Progress<Removal<'f, P>> {
        if *self.instance.get_or_insert(hotplug.instance()) != hotplug.instance() {
            return Progress::Pending(BlockerKind::Foreign.at(self.untried.range()));
        }
        self.unpark(hooks);
        let mut poll = Poll { hotplug, hooks, allowance: budget.into() };
        loop {
            let has_budget = if let Some(window) = self.window.take() {
                self.drain(window, &mut poll)
            } else if self.isolates_more {
                self.isolate_more(&mut poll)
            } else {
                let next = self.next_window(poll.hotplug);
                let joins = next.is_some_and(|next| self.joins_ready_run(next, poll.hotplug));
                if !self.ready_run.is_empty() && !joins {
                    match self.hand_out_ready_run(&mut poll) {
                        Some(removal) => return Progress::Ready(removal),
                        None => continue,
                    }
                }
                match next {
                    Some(next) => self.begin_window(next, &mut poll),
                    None => return self.end(&mut poll),
                }
            };
            if !has_budget {
                return Progress::Working;
            }
        }
    }

    /// Drains a window, and takes it offline once no frame of it is in use. Returns whether the budget is
    /// not used up.
    fn drain<M: Map>(&mut self, mut window: Window<'f, P>, poll: &mut Poll<'_, 'f, P, M>) -> bool {
        match poll.hotplug.drain(&mut window, poll.hooks, &mut poll.allowance) {
            DrainProgress::Done => self.add_to_ready(window.into_isolation(), poll),
            DrainProgress::Blocked(blocker) => {
                self.give_up(window.into_isolation(), blocker, poll);
            }
            DrainProgress::Working => {
                self.window = Some(window);
                return false;
            }
        }
        true
    }

    /// Ends the poll of a shrink that has tried all of its range.
    fn end<M: Map>(&mut self, poll: &mut Poll<'_, 'f, P, M>) -> Progress<Removal<'f, P>> {
        let blocker = self.blocker;
        if self.is_persistent {
            self.start_again(poll);
        }
        blocker.map_or(Progress::Idle, Progress::Pending)
    }

    /// Puts online again, in its former zone, the memory that is isolated, or offline and not yet
    /// [ready](Progress::Ready). Its poisoned frames stay quarantined. If the shrink began on another
    /// instance, drops it: its memory stays isolated or held.
    ///
    /// Cost: O(pageblocks) of the isolated memory, and O(sections) of the offline memory.
    pub fn cancel<M: Map>(mut self, hotplug: &mut Hotplug<'f, P, M>, hooks: &mut dyn Hooks) {
        if self.instance.is_some_and(|instance| instance != hotplug.instance()) {
            return;
        }
        self.unpark(hooks);
        let window = self.window.take().map(Window::into_isolation);
        for isolated in [window, self.isolated.take()].into_iter().flatten() {
            hotplug.release_cancelled(isolated, hooks);
        }
        if !self.ready_run.is_empty() {
            hotplug.bring_back_online(self.ready_run, hooks);
        }
    }

    /// Returns the number of frames that the shrink has not taken, for tests: it still has to take
    /// them, or could not.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    #[must_use]
    pub const fn frames_left(&self) -> u64 {
        self.frames_left
    }
}

impl<P> fmt::Debug for Shrink<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shrink")
            .field("within", &self.untried.range())
            .field("frames_left", &self.frames_left)
            .field("ready", &self.ready_run)
            .field("blocker", &self.blocker)
            .finish()
    }
}
