//! Takes as much of a range offline as possible, from the top down, and prepares each run for
//! removal.
//!
//! A shrink leaves offline what it has taken offline, even if the rest is blocked, and reports the
//! first blocker.

use super::drain::{DrainProgress, Window};
use super::{Budget, Hotplug, Removal};
use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, BlockerKind};
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::invariant::OrViolation;
use crate::isolate::Isolation;
use crate::mapping::Mapping;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::progress::Progress;
use crate::words::SectionPart;
use core::fmt;

/// A request to take memory offline for removal, the highest memory first. It skips boot memory,
/// which is never removed.
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
    /// The part of `range` that the shrink has not tried yet. Its end moves down.
    untried: PfnRange,
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
    is_persistent: bool,
    /// The start of the last unit that the shrink has isolated while it was pending.
    last_kept_unit: Pfn,
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
    pub max_run_frames: u64,
    /// Whether a shrink that is pending tries the whole range again at the next poll. Until then it
    /// keeps one online unit isolated, so that the kernel cannot allocate again the frames that it
    /// frees there: the highest unit first, then a lower unit each time, and after the lowest unit
    /// the highest again. It isolates none if the blocker is a veto, or too little free memory.
    /// [`Shrink::cancel`] releases the unit.
    pub is_persistent: bool,
}

/// Takes all of the range, in runs of any length, down to single pageblocks if necessary.
impl From<PfnRange> for ShrinkOptions {
    fn from(within: PfnRange) -> ShrinkOptions {
        let unit = PAGEBLOCK_FRAMES as u64;
        let frames = within.frames();
        ShrinkOptions { within, frames, unit, max_run_frames: u64::MAX, is_persistent: false }
    }
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
            untried: within,
            unit,
            frames_left: frames / unit * unit,
            max_run: (max_run_frames / unit * unit).max(unit),
            ready_run: PfnRange::EMPTY,
            window: None,
            is_persistent,
            last_kept_unit: Pfn::LIMIT,
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
    /// nothing, unless the shrink is [persistent](ShrinkOptions::is_persistent). If it is polled on
    /// another instance than its own, it is pending for [`BlockerKind::Foreign`], and not over.
    ///
    /// Cost: up to the budget, O(sections) of the free memory and O(pageblocks) of the other
    /// memory.
    pub fn poll<M: Mapping>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        mut budget: Budget,
    ) -> Progress<Removal> {
        if *self.instance.get_or_insert(hotplug.instance()) != hotplug.instance() {
            return Progress::Pending(BlockerKind::Foreign.at(self.untried));
        }
        loop {
            if let Some(mut window) = self.window.take() {
                match hotplug.drain(&mut window, hooks, &mut budget) {
                    DrainProgress::Done => {
                        self.add_to_ready(window.into_isolation(), hotplug, hooks)
                    }
                    DrainProgress::Working => {
                        self.window = Some(window);
                        return Progress::Working;
                    }
                    DrainProgress::Blocked(blocker) => {
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
            let offline_range = PfnRange::new(next.start(), next.end().max(self.ready_run.end()));
            let opened = match hotplug.descriptors_of_others(next, offline_range.unwrap_or(next)) {
                Some(range) => Err(BlockerKind::Metadata.at(range)),
                None => hotplug.open_window(next, 0, hooks),
            };
            match opened {
                Ok(window) => self.window = Some(window),
                Err(Blocker { kind: BlockerKind::NotEnoughFree { live, free }, .. })
                    if self.discarded_above > next.start() =>
                {
                    let undiscarded = next.split_at(self.discarded_above).0;
                    let blocks = undiscarded.chunks(PAGEBLOCK_FRAMES as u64).rev();
                    let missing_frames = live.saturating_sub(free);
                    let last = hotplug.discard(blocks, missing_frames, hooks, &mut budget);
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
    /// [ready](Progress::Ready). Its poisoned frames stay quarantined. Cannot fail on the instance
    /// that the shrink began on.
    ///
    /// Cost: O(pageblocks) of the isolated memory, and O(sections) of the offline memory.
    ///
    /// # Errors
    /// Returns the request if it began on another instance.
    pub fn cancel<M: Mapping>(
        mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), Shrink<'f, P>> {
        if self.instance.is_some_and(|instance| instance != hotplug.instance()) {
            return Err(self);
        }
        if let Some(window) = self.window.take() {
            hotplug.release_cancelled(window.into_isolation(), hooks);
        }
        if !self.ready_run.is_empty() {
            hotplug.bring_back_online(self.ready_run, hooks);
        }
        Ok(())
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
    fn add_to_ready<M: Mapping>(
        &mut self,
        window: Isolation<'f, P>,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) {
        match hotplug.take_offline_held(window, hooks) {
            Ok(range) => {
                let end =
                    if self.ready_run.is_empty() { range.end() } else { self.ready_run.end() };
                self.ready_run = PfnRange::new(range.start(), end).or_violation().unwrap_or(range);
                self.frames_left -= range.frames();
                if self.is_next(range) {
                    self.untried = self.untried.split_at(range.start()).0;
                }
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
    #[inline(never)]
    fn skip(&mut self, window: PfnRange, blocker: Blocker) {
        if !self.is_next(window) {
            return;
        }
        if window.frames() > self.unit {
            self.single_units_above = window.start();
            return;
        }
        self.blocker.get_or_insert(blocker);
        self.untried = self.untried.split_at(window.start()).0;
    }

    /// Makes the next poll try the whole range again. Isolates a unit until then, unless the shrink
    /// is pending because of a veto, or because the kernel may need the unit's memory.
    fn start_again<M: Mapping>(&mut self, hotplug: &mut Hotplug<'f, P, M>, hooks: &mut dyn Hooks) {
        let kind = self.blocker.take().map(|blocker| blocker.kind);
        if !matches!(kind, None | Some(BlockerKind::Veto(_) | BlockerKind::NotEnoughFree { .. })) {
            // Make `next_window` return a single unit: the highest below the last one that was kept,
            // or the highest of all.
            self.single_units_above = Pfn::ZERO;
            self.untried = self.range.split_at(self.last_kept_unit).0;
            let next = self.next_window(hotplug).or_else(|| {
                self.untried = self.range;
                self.next_window(hotplug)
            });
            self.last_kept_unit = next.map_or(Pfn::LIMIT, PfnRange::start);
            self.window = next.and_then(|unit| hotplug.open_window(unit, 0, hooks).ok());
        }
        self.untried = self.range;
        (self.single_units_above, self.discarded_above) = (Pfn::LIMIT, Pfn::LIMIT);
    }

    /// Returns whether `window` is the highest part of `untried`, which the shrink tries next.
    /// Otherwise, `window` is the unit that the shrink has isolated while it was pending.
    fn is_next(&self, window: PfnRange) -> bool {
        window.end() >= self.untried.end()
    }

    /// Returns the highest window to take. Skips boot memory, which is never removed.
    fn next_window<M: Mapping>(&mut self, hotplug: &Hotplug<'f, P, M>) -> Option<PfnRange> {
        loop {
            let window = self.next_online_window(hotplug)?;
            let Some(boot) = hotplug.boot_region_at(window.start()) else { return Some(window) };
            let skipped = boot.intersection(self.untried);
            self.blocker.get_or_insert(BlockerKind::BootMemory.at(skipped));
            let below = boot.start().align_down(self.unit);
            self.untried = self.untried.split_at(below).0;
        }
    }

    /// Returns the highest online window: a whole section, the highest run of online units of one
    /// region in it, or a single unit. Moves the end of `untried` down to the end of the window, or to
    /// its start if there is no window.
    fn next_online_window<M: Mapping>(&mut self, hotplug: &Hotplug<'f, P, M>) -> Option<PfnRange> {
        if self.frames_left == 0 {
            return None;
        }
        let size = self.unit.max(SECTION_FRAMES as u64);
        while !self.untried.is_empty() {
            let last = self.untried.end().number().checked_sub(1)?;
            let chunk = self.untried.split_at(Pfn::new(last)?.align_down(size)).1;
            if self.single_units_above >= chunk.end()
                && chunk.frames() <= self.frames_left
                && hotplug.is_online(chunk)
            {
                return Some(chunk);
            }
            let Some(end) = hotplug.last_online(self.untried) else {
                self.untried = PfnRange::EMPTY;
                return None;
            };
            let end = end.align_up(self.unit);
            if end < self.untried.end() {
                self.untried = self.untried.split_at(end).0;
                continue;
            }
            // Find the highest run of online units in the chunk.
            let online = |&unit: &PfnRange| hotplug.is_online(unit);
            let units = chunk.chunks(self.unit);
            let Some(highest) = units.clone().rev().find(online) else {
                self.untried = self.untried.split_at(chunk.start()).0;
                continue;
            };
            self.untried = self.untried.split_at(highest.end()).0;
            if self.single_units_above < highest.end() {
                return Some(highest);
            }
            let mut run = highest;
            for unit in units.rev().skip_while(|unit| unit.end() > highest.start()) {
                let longer = PfnRange::new(unit.start(), run.end()).or_violation()?;
                if longer.frames() > self.frames_left
                    || !hotplug.is_online(unit)
                    || !hotplug.is_announced(longer)
                {
                    break;
                }
                run = longer;
            }
            return Some(run);
        }
        None
    }
}

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Returns whether all of `range` is online and lies in one region.
    fn is_online(&self, range: PfnRange) -> bool {
        let mut section_ranges = range.chunks(SECTION_FRAMES as u64);
        self.is_announced(range)
            && section_ranges.all(|section_range| {
                self.words().section_part(section_range).is_some_and(
                    |SectionPart { section, blocks }| {
                        blocks & !section.online.load(crate::sync::Ordering::Acquire) == 0
                    },
                )
            })
    }
}

impl<P> fmt::Debug for Shrink<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shrink")
            .field("within", &self.untried)
            .field("frames_left", &self.frames_left)
            .field("ready", &self.ready_run)
            .field("blocker", &self.blocker)
            .finish()
    }
}
