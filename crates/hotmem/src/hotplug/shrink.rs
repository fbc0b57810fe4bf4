//! Takes as much of a range offline as possible, from the top down, and prepares each run for
//! removal.
//!
//! A shrink leaves offline what it has taken offline, even if the rest is blocked, and reports the
//! first blocker.

use super::drain::{Drained, Window};
use super::{Budget, Hotplug, Removal};
use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, Why};
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::isolate::Isolation;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::origin::MachineId;
use crate::platform::Platform;
use crate::progress::Progress;
use crate::words::Part;
use core::fmt;

/// A request to take memory offline for removal, the highest memory first.
///
/// Each [`Progress::Ready`] is a run that the caller can offer to the device. The shrink belongs to
/// the machine that polls it first. Call [`cancel`](Self::cancel) for a shrink that is no longer
/// needed. If a shrink is dropped or forgotten before it is done, its memory stays isolated, or
/// offline and held, and stays counted.
#[must_use = "a request does nothing until it is polled"]
pub struct Shrink<'f, P> {
    /// The machine that polled the shrink first.
    machine: Option<MachineId>,
    /// The range that the shrink may still take memory from. Its end moves down.
    within: PfnRange,
    /// The smallest run that the platform can take, in frames.
    unit: u64,
    /// The number of frames still to take.
    left: u64,
    /// The largest run that the platform can take at one time, in frames.
    largest: u64,
    /// The run that is offline and held, and that no [`Removal`] has yet.
    ready: PfnRange,
    /// The window that is being drained.
    window: Option<Window<'f, P>>,
    /// Above this frame, the shrink takes single units, because a part of the section there cannot
    /// be taken offline.
    single_units_above: Pfn,
    /// [`Hooks::discard`] was already called for the memory above this frame.
    discarded_above: Pfn,
    blocker: Option<Blocker>,
}

/// The memory that a [`Shrink`] takes. A [`PfnRange`] converts to options that take all of it.
/// Counts are in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShrinkOptions {
    /// The range to take memory from.
    pub within: PfnRange,
    /// The number of frames to take, rounded down to whole units.
    pub frames: u64,
    /// The smallest run that the platform can take, aligned to its size: a pageblock (512) or a
    /// larger power of two. Other numbers are rounded up.
    pub unit: u64,
    /// The longest run that the platform can take at one time, at least a unit.
    pub largest: u64,
}

/// Takes all of the range, in runs of any length, down to single pageblocks if necessary.
impl From<PfnRange> for ShrinkOptions {
    fn from(within: PfnRange) -> ShrinkOptions {
        let unit = PAGEBLOCK_FRAMES as u64;
        ShrinkOptions { within, frames: within.frames(), unit, largest: u64::MAX }
    }
}

impl<'f, P> Shrink<'f, P> {
    /// Makes a request to take memory as `options` say. Nothing happens before the request is
    /// polled.
    pub fn new(options: impl Into<ShrinkOptions>) -> Shrink<'f, P> {
        let ShrinkOptions { within, frames, unit, largest } = options.into();
        let unit = unit.clamp(PAGEBLOCK_FRAMES as u64, PFN_LIMIT).next_power_of_two();
        let within = within.align_inward(unit);
        Shrink {
            machine: None,
            within,
            unit,
            left: frames / unit * unit,
            largest: (largest / unit * unit).max(unit),
            ready: PfnRange::EMPTY,
            window: None,
            single_units_above: Pfn::LIMIT,
            discarded_above: Pfn::LIMIT,
            blocker: None,
        }
    }
}

impl<'f, P: Platform> Shrink<'f, P> {
    /// Continues the shrink. A run that is [ready](Progress::Ready) is drained, offline and
    /// unmapped: offer it to the device, then commit or abandon the removal. The shrink is over
    /// once it is idle, or pending for the first blocker that it met: then polling it again changes
    /// nothing. If it is polled on another machine than its own, it is pending for
    /// [`Why::Foreign`], and not over.
    ///
    /// Cost: up to the budget, O(sections) of the free memory and O(pageblocks) of the other
    /// memory.
    pub fn poll<M: Mapping>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        mut budget: Budget,
    ) -> Progress<Removal> {
        if *self.machine.get_or_insert(hotplug.machine()) != hotplug.machine() {
            return Progress::Pending(Why::Foreign.at(self.within));
        }
        loop {
            if let Some(mut window) = self.window.take() {
                match hotplug.drain(&mut window, hooks, &mut budget) {
                    Drained::Yes => self.add_to_ready(window.into_isolation(), hotplug, hooks),
                    Drained::Working => {
                        self.window = Some(window);
                        return Progress::Working;
                    }
                    Drained::Blocked(blocker) => {
                        let window = window.into_isolation();
                        let range = window.range();
                        hotplug.release_cancelled(window, hooks);
                        self.skip(range, blocker);
                    }
                }
                continue;
            }
            let next = self.next_window(hotplug);
            let joins = next.is_some_and(|next| {
                let all = PfnRange::new(next.start(), self.ready.end());
                self.ready.is_empty()
                    || (next.end() == self.ready.start()
                        && self.ready.frames() < self.largest
                        && all.is_some_and(|all| hotplug.is_announced(all)))
            });
            if !self.ready.is_empty() && !joins {
                let more = self.ready.frames().saturating_sub(self.largest);
                let start = self.ready.start();
                let cut = start.checked_add(more).unwrap_or(start);
                // If possible, cut at a section boundary: a section may hold its own descriptors,
                // and is then best removed as a whole.
                let whole = cut.align_up(self.unit.max(SECTION_FRAMES as u64));
                let cut = if more > 0 && whole < self.ready.end() { whole } else { cut };
                let (rest, top) = self.ready.split_at(cut);
                self.ready = rest;
                let Some(range) = hotplug.descriptors_of_others(top, top) else {
                    return Progress::Ready(hotplug.unmap_offlined(top));
                };
                // Put `top` online again: it holds descriptors of memory whose removal was
                // abandoned, so that memory stays.
                hotplug.bring_back_online(top, hooks);
                self.left += top.frames();
                self.blocker.get_or_insert(Why::Metadata.at(range));
                continue;
            }
            let Some(next) = next else {
                return self.blocker.map_or(Progress::Idle, Progress::Pending);
            };
            let leaving = PfnRange::new(next.start(), next.end().max(self.ready.end()));
            let opened = match hotplug.descriptors_of_others(next, leaving.unwrap_or(next)) {
                Some(range) => Err(Why::Metadata.at(range)),
                None => hotplug.open_window(next, 0, hooks),
            };
            match opened {
                Ok(window) => self.window = Some(window),
                Err(Blocker { why: Why::NotEnoughFree { live, free }, .. })
                    if self.discarded_above > next.start() =>
                {
                    let undiscarded = next.split_at(self.discarded_above).0;
                    let blocks = undiscarded.chunks(PAGEBLOCK_FRAMES as u64).rev();
                    let missing = live.saturating_sub(free);
                    let last = hotplug.discard(blocks, missing, hooks, &mut budget);
                    self.discarded_above = last.map_or(next.start(), PfnRange::start);
                }
                Err(blocker) => self.skip(next, blocker),
            }
            if !budget.spend(next.frames() / PAGEBLOCK_FRAMES as u64) {
                return Progress::Working;
            }
        }
    }

    /// Puts online again, in its former zone, the memory that is isolated, or offline and not yet
    /// [ready](Progress::Ready). Its poisoned frames stay out of use. Cannot fail on the machine
    /// that the shrink began on.
    ///
    /// Cost: O(pageblocks) of the isolated memory, and O(sections) of the offline memory.
    ///
    /// # Errors
    /// Returns the request if it began on another machine.
    pub fn cancel<M: Mapping>(
        mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), Shrink<'f, P>> {
        if self.machine.is_some_and(|machine| machine != hotplug.machine()) {
            return Err(self);
        }
        if let Some(window) = self.window.take() {
            hotplug.release_cancelled(window.into_isolation(), hooks);
        }
        if !self.ready.is_empty() {
            hotplug.bring_back_online(self.ready, hooks);
        }
        Ok(())
    }

    /// Returns the number of frames that the shrink has not taken: it still has to take them, or
    /// could not.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Takes a drained window out of the allocator and adds it to `ready`.
    fn add_to_ready<M: Mapping>(
        &mut self,
        window: Isolation<'f, P>,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) {
        match hotplug.take_offline_and_hold(window, hooks) {
            Ok(range) => {
                let end = if self.ready.is_empty() { range.end() } else { self.ready.end() };
                self.ready = PfnRange::new(range.start(), end).known().unwrap_or(range);
                self.left -= range.frames();
                self.within = self.within.split_at(range.start()).0;
            }
            Err((window, in_use)) => {
                let range = window.range();
                hotplug.release_cancelled(window, hooks);
                self.skip(range, in_use);
            }
        }
    }

    /// Handles a blocked window. If `window` is larger than a unit, the shrink tries it again unit
    /// by unit; otherwise, `window` stays online.
    fn skip(&mut self, window: PfnRange, blocker: Blocker) {
        if window.frames() > self.unit {
            self.single_units_above = window.start();
            return;
        }
        self.blocker.get_or_insert(blocker);
        self.within = self.within.split_at(window.start()).0;
    }

    /// Returns the highest window to take: a whole section, the highest run of online units in it,
    /// or a single unit. Moves the end of `within` down to the end of the window.
    fn next_window<M: Mapping>(&mut self, hotplug: &Hotplug<'f, P, M>) -> Option<PfnRange> {
        if self.left == 0 {
            return None;
        }
        let size = self.unit.max(SECTION_FRAMES as u64);
        while !self.within.is_empty() {
            let last = self.within.end().number().checked_sub(1)?;
            let chunk = self.within.split_at(Pfn::new(last)?.align_down(size)).1;
            if self.single_units_above >= chunk.end()
                && chunk.frames() <= self.left
                && hotplug.is_online(chunk)
            {
                return Some(chunk);
            }
            let end = hotplug.last_online(self.within)?.align_up(self.unit);
            if end < self.within.end() {
                self.within = self.within.split_at(end).0;
                continue;
            }
            // Find the highest run of online units in the chunk.
            let online = |&unit: &PfnRange| hotplug.is_online(unit);
            let units = chunk.chunks(self.unit);
            let Some(highest) = units.clone().rev().find(online) else {
                self.within = self.within.split_at(chunk.start()).0;
                continue;
            };
            self.within = self.within.split_at(highest.end()).0;
            if self.single_units_above < highest.end() {
                return Some(highest);
            }
            let below = units.rev().skip_while(|unit| unit.end() > highest.end());
            let run = below
                .take_while(online)
                .take_while(|unit| highest.end().number() - unit.start().number() <= self.left);
            let start = run.last().map_or(highest.start(), PfnRange::start);
            return PfnRange::new(start, highest.end());
        }
        None
    }
}

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Returns whether all of `range` is online and lies in one region.
    fn is_online(&self, range: PfnRange) -> bool {
        let mut pieces = range.sections();
        self.is_announced(range)
            && pieces.all(|piece| {
                self.words().part_of(piece).is_some_and(|Part { section, blocks }| {
                    blocks & !section.online.load(crate::sync::Ordering::Acquire) == 0
                })
            })
    }
}

impl<P> fmt::Debug for Shrink<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shrink")
            .field("within", &self.within)
            .field("left", &self.left)
            .field("ready", &self.ready)
            .field("blocker", &self.blocker)
            .finish()
    }
}
