//! Takes as much of a range offline as possible, from the top down, and prepares each run for
//! removal.
//!
//! A shrink leaves offline what it has taken offline, even if the rest is blocked, and reports the
//! first blocker.

use super::budget::Allowance;
use super::drain::{DrainProgress, ParkedWindow, Window};
use super::untried::Untried;
use super::{Budget, Hotplug, Removal, ShrinkOptions};
use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, BlockerKind};
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::invariant::OrRecordViolation;
use crate::isolate::Isolation;
use crate::mapping::Map;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::progress::Progress;
use core::fmt;

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
        let mut allowance = Allowance::from(budget);
        loop {
            if let Some(mut window) = self.window.take() {
                match hotplug.drain(&mut window, hooks, &mut allowance) {
                    DrainProgress::Done => {
                        self.add_to_ready(window.into_isolation(), hotplug, hooks)
                    }
                    DrainProgress::Working => {
                        self.window = Some(window);
                        return Progress::Working;
                    }
                    DrainProgress::Blocked(blocker) => {
                        self.give_up(window.into_isolation(), blocker, hotplug, hooks)
                    }
                }
                continue;
            }
            if self.isolates_more {
                match self.isolate_more(hotplug, hooks) {
                    None => self.isolates_more = false,
                    Some((window, was_free)) if allowance.spend_window(window, was_free) => {}
                    Some(_) => return Progress::Working,
                }
                continue;
            }
            let next = match &self.isolated {
                Some(isolated) => {
                    let start = self.untried.start_of_last_window(isolated.range());
                    Some(isolated.range().split_at(start).1)
                }
                None => self.untried.next_window(hotplug, self.frames_left, &mut self.blocker),
            };
            let joins = next.is_some_and(|next| {
                let joined = PfnRange::new(next.start(), self.ready_run.end());
                self.ready_run.is_empty()
                    || (next.end() == self.ready_run.start()
                        && self.ready_run.frames() < self.max_run
                        && joined.is_some_and(|joined| hotplug.is_announced(joined)))
            });
            if !self.ready_run.is_empty() && !joins {
                let excess = self.ready_run.frames().saturating_sub(self.max_run);
                let start = self.ready_run.start();
                let cut = start.checked_add(excess).unwrap_or(start);
                // If possible, cut at a section boundary: a section may hold its own descriptors,
                // and is then best removed as a whole.
                let aligned = cut.align_up(self.unit.max(SECTION_FRAMES as u64));
                let cut = if excess > 0 && aligned < self.ready_run.end() { aligned } else { cut };
                let (still_ready, top) = self.ready_run.split_at(cut);
                self.ready_run = still_ready;
                let blocker = match hotplug.descriptors_of_others(top, top) {
                    // `top` holds descriptors of memory whose removal was abandoned, so that memory
                    // stays.
                    Some(range) => BlockerKind::Metadata.at(range),
                    None => match hotplug.unmap(top, true) {
                        Ok(removal) => return Progress::Ready(removal),
                        Err(_) => BlockerKind::NoTables.at(top),
                    },
                };
                hotplug.bring_back_online(top, hooks);
                self.frames_left += top.frames();
                self.blocker.get_or_insert(blocker);
                continue;
            }
            let Some(next) = next else {
                let blocker = self.blocker;
                if self.is_persistent {
                    self.start_again(hotplug, hooks);
                }
                return blocker.map_or(Progress::Idle, Progress::Pending);
            };
            // Memory that is isolated already costs as little as free memory.
            let mut costs_little = self.isolated.is_some();
            if let Some(isolated) = self.isolated.take() {
                let (below, top) = isolated.split_at(next.start());
                self.isolated = (!below.range().is_empty()).then_some(below);
                match self.descriptors_of_others(next, hotplug) {
                    Some(blocker) => self.give_up(top, blocker, hotplug, hooks),
                    None => self.window = Some(Window::of(top)),
                }
            } else {
                match self.open_window(next, 0, hotplug, hooks) {
                    Ok(window) if window.live_frames() == 0 => {
                        costs_little = window.was_free();
                        self.window = Some(window);
                    }
                    Ok(window) => {
                        (self.live_frames, self.isolates_more) = (window.live_frames(), true);
                        self.isolated = Some(window.into_isolation());
                    }
                    Err(Blocker { kind: BlockerKind::NotEnoughFree { live, free }, .. })
                        if self.discarded_above > next.start() =>
                    {
                        let undiscarded = next.split_at(self.discarded_above).0;
                        let blocks = undiscarded.chunks(PAGEBLOCK_FRAMES as u64).rev();
                        let missing_frames = live.saturating_sub(free);
                        let last = hotplug.discard(
                            blocks,
                            missing_frames,
                            hooks,
                            &mut allowance,
                            &mut |_, _| {},
                        );
                        self.discarded_above = last.map_or(next.start(), PfnRange::start);
                    }
                    Err(_) if next.frames() > self.unit => {
                        self.untried.use_single_units_above(next.start());
                    }
                    Err(blocker) => {
                        self.blocker.get_or_insert(blocker);
                        self.untried.cut(next.start());
                    }
                }
            }
            if !allowance.spend_window(next, costs_little) {
                return Progress::Working;
            }
        }
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

    /// Takes a drained window out of the allocator and adds it to `ready_run`.
    fn add_to_ready<M: Map>(
        &mut self,
        window: Isolation<'f, P>,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) {
        match hotplug.take_offline_held(window, hooks) {
            Ok(range) => {
                let end =
                    if self.ready_run.is_empty() { range.end() } else { self.ready_run.end() };
                self.ready_run =
                    PfnRange::new(range.start(), end).or_record_violation().unwrap_or(range);
                self.frames_left -= range.frames();
            }
            Err((window, in_use)) => self.give_up(window, in_use, hotplug, hooks),
        }
    }

    /// Isolates `window` for the shrink, unless it holds descriptors of memory that stays.
    /// `more_live` frames of other isolated memory have to move as well.
    fn open_window<M: Map>(
        &mut self,
        window: PfnRange,
        more_live: u64,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Result<Window<'f, P>, Blocker> {
        if let Some(blocker) = self.descriptors_of_others(window, hotplug) {
            return Err(blocker);
        }
        let opened = hotplug.open_window(window, more_live, hooks)?;
        self.untried.cut(window.start());
        Ok(opened)
    }

    /// Isolates the window right below the isolated memory, if the shrink will take that window and
    /// there is enough free memory elsewhere. Returns the window, and whether all of it was free.
    fn isolate_more<M: Map>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Option<(PfnRange, bool)> {
        let isolated = self.isolated.as_ref()?.range();
        let frames_left = self.frames_left.saturating_sub(isolated.frames());
        // If this is not the next window, it is looked for again later.
        let next = { self.untried }.next_window(hotplug, frames_left, &mut None)?;
        let joined = PfnRange::new(next.start(), isolated.end())?;
        if next.end() != isolated.start() || !hotplug.is_announced(joined) {
            return None;
        }
        let window = self.open_window(next, self.live_frames, hotplug, hooks).ok()?;
        self.live_frames += window.live_frames();
        let was_free = window.was_free();
        self.isolated = self.isolated.take().map(|above| window.into_isolation().join(above));
        Some((next, was_free))
    }

    /// Returns a pageblock of `window` that holds descriptors of memory that stays.
    fn descriptors_of_others<M: Map>(
        &self,
        window: PfnRange,
        hotplug: &Hotplug<'f, P, M>,
    ) -> Option<Blocker> {
        let isolated_end = self.isolated.as_ref().map_or(Pfn::ZERO, |above| above.range().end());
        let end = window.end().max(self.ready_run.end()).max(isolated_end);
        let removed = PfnRange::new(window.start(), end).unwrap_or(window);
        let found = hotplug.descriptors_of_others(window, removed)?;
        Some(BlockerKind::Metadata.at(found))
    }

    /// Handles isolated memory that cannot be drained. If it is larger than a unit, the shrink tries
    /// it again unit by unit; otherwise, it stays online.
    fn give_up<M: Map>(
        &mut self,
        window: Isolation<'f, P>,
        blocker: Blocker,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) {
        let range = window.range();
        if range.frames() > self.unit {
            self.untried.use_single_units_above(range.start());
            self.isolated = Some(match self.isolated.take() {
                Some(below) => below.join(window),
                None => window,
            });
            return;
        }
        hotplug.release_cancelled(window, hooks);
        if self.is_next(range) {
            self.blocker.get_or_insert(blocker);
            self.untried.cut(range.start());
        }
    }

    /// Takes the unit back that the shrink has isolated while it was pending, unless an allocation has
    /// taken it. Either way, the unit is still to be tried.
    fn unpark(&mut self, hooks: &mut dyn Hooks) {
        match self.parked_window.take().map(ParkedWindow::unpark) {
            Some(Ok(window)) => self.window = Some(window),
            Some(Err(range)) => hooks.offline_cancelled(range),
            None => {}
        }
    }

    /// Returns the memory that an allocation may take back, or has taken back, until the next poll.
    /// For tests.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn parked_range(&self) -> Option<PfnRange> {
        self.parked_window.as_ref().map(ParkedWindow::range)
    }

    /// Makes the next poll try the whole range again. Isolates a unit until then, unless the shrink
    /// is pending because of a veto, or because the kernel may need the unit's memory.
    fn start_again<M: Map>(&mut self, hotplug: &mut Hotplug<'f, P, M>, hooks: &mut dyn Hooks) {
        let kind = self.blocker.take().map(|blocker| blocker.kind);
        if !matches!(kind, None | Some(BlockerKind::Veto(_) | BlockerKind::NotEnoughFree { .. })) {
            // The highest unit below the last one that was kept, or the highest of all.
            let highest_unit_of = |range| {
                let mut untried = Untried::all(range, self.unit);
                untried.use_single_units_above(Pfn::ZERO);
                untried.next_window(hotplug, self.frames_left, &mut None)
            };
            let below_last = self.range.split_at(self.last_kept_unit).0;
            let next = highest_unit_of(below_last).or_else(|| highest_unit_of(self.range));
            self.last_kept_unit = next.map_or(Pfn::LIMIT, PfnRange::start);
            self.parked_window = next.and_then(|unit| {
                let window = hotplug.open_window(unit, 0, hooks).ok()?;
                // If too many shrinks wait, this one isolates nothing.
                let kept = |window: Window<'f, P>| {
                    hotplug.release_cancelled(window.into_isolation(), hooks);
                };
                window.park().map_err(kept).ok()
            });
        }
        self.untried = Untried::all(self.range, self.unit);
        self.discarded_above = Pfn::LIMIT;
    }

    /// Returns whether all memory above `window` was tried. Otherwise, `window` is the unit that the
    /// shrink has isolated while it was pending, and will be tried again.
    fn is_next(&self, window: PfnRange) -> bool {
        window.end() >= self.untried.range().end()
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
