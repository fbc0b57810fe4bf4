//! As much of a region as can be had, from the top down.
//!
//! A shrink keeps what it achieved and names the first thing that stood in its way.

use super::drain::{Drained, Window};
use super::{Blocker, Budget, Hotplug, Removal, Why};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::isolate::Isolation;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::origin::MachineId;
use crate::platform::Platform;
use crate::words::Part;
use core::fmt;

/// Memory on its way out, highest first.
///
/// Each [`Shrunk::Ready`] is a run that the device can be told to take. It is the machine's that
/// polls it first. One that is dropped or forgotten before it is done leaves what it has come to
/// isolated, or offline and held, and counted: [`cancel`](Self::cancel) it.
#[must_use = "a request does nothing until it is polled"]
pub struct Shrink<'f, P> {
    /// Once it was polled.
    machine: Option<MachineId>,
    /// Where it may look; its end moves down.
    within: PfnRange,
    /// The smallest part that the platform can take, in frames.
    unit: u64,
    /// Frames still to go.
    left: u64,
    /// The largest run that the platform can take at one time, in frames.
    largest: u64,
    /// Offline and held, and not yet handed over.
    ready: PfnRange,
    /// The window that is being drained.
    window: Option<Window<'f, P>>,
    /// In this section something stays, so it is worked unit by unit.
    by_unit_above: Pfn,
    /// From here up the kernel was asked for what it can do without.
    asked_above: Pfn,
    blocker: Option<Blocker>,
}

/// What a [`Shrink`] is to take. Counts are in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShrinkOptions {
    /// Where it may look.
    pub within: PfnRange,
    /// How much; what is left over of a unit stays.
    pub frames: u64,
    /// The smallest part that the platform can take, aligned to its size: a pageblock (512) or a
    /// larger power of two; other numbers are rounded up.
    pub unit: u64,
    /// The longest run that the platform can take at one time, at least a unit.
    pub largest: u64,
}

impl ShrinkOptions {
    /// All of `within`, pageblock by pageblock if need be, in runs of any length.
    #[must_use]
    pub const fn all_of(within: PfnRange) -> ShrinkOptions {
        let unit = PAGEBLOCK_FRAMES as u64;
        ShrinkOptions { within, frames: within.frames(), unit, largest: u64::MAX }
    }
}

/// What a shrink has to say.
#[derive(Debug)]
pub enum Shrunk {
    /// This run is isolated, drained, offline and unmapped: tell the device, then commit or abandon
    /// the removal.
    Ready(Removal),
    /// The budget is used up: poll again.
    Working,
    /// It is over. `left` frames could not be had; the first thing in the way is named. For
    /// [`Why::Foreign`] it is not over, but can go on only where it was begun.
    Done {
        /// Frames that stay though they were to go.
        left: u64,
        /// The first thing that was in the way.
        blocker: Option<Blocker>,
    },
}

impl<'f, P> Shrink<'f, P> {
    /// Takes memory out as `options` say. Nothing happens until it is polled.
    pub fn new(options: ShrinkOptions) -> Shrink<'f, P> {
        let ShrinkOptions { within, frames, unit, largest } = options;
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
            by_unit_above: Pfn::LIMIT,
            asked_above: Pfn::LIMIT,
            blocker: None,
        }
    }
}

impl<'f, P: Platform> Shrink<'f, P> {
    /// Goes on.
    ///
    /// Cost: O(sections) of what is free, O(pageblocks) of what is not, up to the budget.
    pub fn poll<M: Mapping>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        mut budget: Budget,
    ) -> Shrunk {
        if *self.machine.get_or_insert(hotplug.machine()) != hotplug.machine() {
            let blocker = Some(Blocker { range: self.within, why: Why::Foreign });
            return Shrunk::Done { left: self.left, blocker };
        }
        loop {
            if let Some(mut window) = self.window.take() {
                match hotplug.drain(&mut window, hooks, &mut budget) {
                    Drained::Yes => self.keep(window.into_isolation(), hotplug, hooks),
                    Drained::Working => {
                        self.window = Some(window);
                        return Shrunk::Working;
                    }
                    Drained::Blocked(blocker) => {
                        let window = window.into_isolation();
                        let range = window.range();
                        hotplug.give_back(window, hooks);
                        self.pass_over(range, blocker);
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
                // A section goes as one, if it can: it may hold its own descriptors.
                let whole = cut.align_up(self.unit.max(SECTION_FRAMES as u64));
                let cut = if more > 0 && whole < self.ready.end() { whole } else { cut };
                let (rest, top) = self.ready.split_at(cut);
                self.ready = rest;
                let Some(range) = hotplug.keeps_for_others(top, top) else {
                    return Shrunk::Ready(hotplug.hand_over(top));
                };
                // What was handed over before did not go after all.
                hotplug.put_back(top, hooks);
                self.left += top.frames();
                self.blocker.get_or_insert(Blocker { range, why: Why::Metadata });
                continue;
            }
            let Some(next) = next else {
                return Shrunk::Done { left: self.left, blocker: self.blocker };
            };
            let leaving = PfnRange::new(next.start(), next.end().max(self.ready.end()));
            let opened = match hotplug.keeps_for_others(next, leaving.unwrap_or(next)) {
                Some(range) => Err(Blocker { range, why: Why::Metadata }),
                None => hotplug.open_window(next, 0, hooks),
            };
            match opened {
                Ok(window) => self.window = Some(window),
                Err(Blocker { why: Why::NoRoom { live, free }, .. })
                    if self.asked_above > next.start() =>
                {
                    let unasked = next.split_at(self.asked_above).0;
                    let blocks = unasked.chunks(PAGEBLOCK_FRAMES as u64).rev();
                    let missing = live.saturating_sub(free);
                    let last = hotplug.discard(blocks, missing, hooks, &mut budget);
                    self.asked_above = last.map_or(next.start(), PfnRange::start);
                }
                Err(blocker) => self.pass_over(next, blocker),
            }
            if !budget.spend(next.frames() / PAGEBLOCK_FRAMES as u64) {
                return Shrunk::Working;
            }
        }
    }

    /// Gives back what is isolated or offline and not yet handed over: it is online as it was, and
    /// what is poisoned of it stays out of use. Cannot fail on the machine that it was begun on.
    ///
    /// Cost: O(pageblocks) of what is isolated, O(sections) of what is offline.
    ///
    /// # Errors
    /// The request, if it was begun on another machine.
    pub fn cancel<M: Mapping>(
        mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), Shrink<'f, P>> {
        if self.machine.is_some_and(|machine| machine != hotplug.machine()) {
            return Err(self);
        }
        if let Some(window) = self.window.take() {
            hotplug.give_back(window.into_isolation(), hooks);
        }
        if !self.ready.is_empty() {
            hotplug.put_back(self.ready, hooks);
        }
        Ok(())
    }

    /// A drained window leaves the allocator and joins what is ready.
    fn keep<M: Mapping>(
        &mut self,
        window: Isolation<'f, P>,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) {
        match hotplug.leave(window, hooks) {
            Ok(range) => {
                let end = if self.ready.is_empty() { range.end() } else { self.ready.end() };
                self.ready = PfnRange::new(range.start(), end).known().unwrap_or(range);
                self.left -= range.frames();
                self.within = self.within.split_at(range.start()).0;
            }
            Err((window, in_use)) => {
                let range = window.range();
                hotplug.give_back(window, hooks);
                let why = Why::Busy;
                self.pass_over(range, Blocker { range: in_use.range(), why });
            }
        }
    }

    /// Something stays in `window`: tried again in smaller parts, or left behind.
    fn pass_over(&mut self, window: PfnRange, blocker: Blocker) {
        if window.frames() > self.unit {
            self.by_unit_above = window.start();
            return;
        }
        self.blocker.get_or_insert(blocker);
        self.within = self.within.split_at(window.start()).0;
    }

    /// The highest part that is online: as much of a section as there is and is wanted, or a unit.
    fn next_window<M: Mapping>(&mut self, hotplug: &Hotplug<'f, P, M>) -> Option<PfnRange> {
        if self.left == 0 {
            return None;
        }
        let size = self.unit.max(SECTION_FRAMES as u64);
        while !self.within.is_empty() {
            let last = self.within.end().number().checked_sub(1)?;
            let chunk = self.within.split_at(Pfn::new(last)?.align_down(size)).1;
            if self.by_unit_above >= chunk.end()
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
            // Its highest run of units that are online.
            let online = |&unit: &PfnRange| hotplug.is_online(unit);
            let units = chunk.chunks(self.unit);
            let Some(highest) = units.clone().rev().find(online) else {
                self.within = self.within.split_at(chunk.start()).0;
                continue;
            };
            self.within = self.within.split_at(highest.end()).0;
            if self.by_unit_above < highest.end() {
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
    /// Whether all of `range` is online, in one region.
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
