//! Makes the engine the driver's memory manager.
//!
//! Plugging is *prepare_add → PLUG → commit_add → online*; unplugging is a [`Shrink`] whose runs go
//! *prepare_remove → UNPLUG → commit_remove*, or are abandoned when the device refuses.

use super::emptying::Emptying;
use super::memory::{Memory, Obstacle, Run, Unplug};
use super::reasons::{not_prepared, reason, refused};
use core::fmt;
use hotmem::{
    AddError, Addition, Announce, AnnounceError, Blocker, Budget, Bytes, Group, Hooks, Hotplug,
    Known, MachineId, Mapping, NodeId, OnlineType, Pfn, PfnRange, Platform, Progress, RangeError,
    RangeErrorKind, Removal, Shrink, ShrinkOptions, State, Why,
    geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES},
};

/// The operations of one device that are in progress in the engine.
///
/// It must live as long as the device's driver. For each step, [`with`](Self::with) lends it the
/// engine, so that several devices can share one; it must always be the same engine. If it is
/// dropped, memory that was being removed stays isolated and counted.
pub struct HotplugMemory<'f, P: Platform> {
    /// The engine that was lent first.
    machine: Option<MachineId>,
    online: Option<OnlineType>,
    budget: Budget,
    /// The largest number of frames that one request adds.
    at_once: u64,
    addition: Option<Addition<'f, P>>,
    /// The range from the first to the last memory that is plugged, and offline until it comes
    /// online or is unplugged.
    coming: PfnRange,
    /// Memory whose removal is prepared.
    leaving: Option<Removal>,
    /// The range in which offline memory is searched first: below the last removal.
    below: PfnRange,
    shrink: Option<Shrinking<'f, P>>,
    /// While there is no shrink, because something blocks the rest.
    emptying: Emptying<'f, P>,
    blocker: Option<Blocker>,
}

/// A shrink in progress and its parameters.
struct Shrinking<'f, P> {
    shrink: Shrink<'f, P>,
    wanted: Unplug,
}

/// The engine, lent to a device.
struct Lent<'a, 'f, P: Platform, M, H> {
    own: &'a mut HotplugMemory<'f, P>,
    hotplug: &'a mut Hotplug<'f, P, M>,
    hooks: &'a mut H,
}

impl<'f, P: Platform> HotplugMemory<'f, P> {
    /// Makes the memory manager of a device. Its memory is brought online as `online`, or, with
    /// `None`, as [`Settings::auto_online`](hotmem::Settings::auto_online). `budget` limits how
    /// much is isolated and migrated in one call when memory is removed.
    #[must_use]
    pub fn new(online: impl Into<Option<OnlineType>>, budget: Budget) -> HotplugMemory<'f, P> {
        let online = online.into();
        HotplugMemory {
            machine: None,
            online,
            budget,
            at_once: u64::MAX,
            addition: None,
            coming: PfnRange::EMPTY,
            leaving: None,
            below: PfnRange::EMPTY,
            shrink: None,
            emptying: Emptying::new(),
            blocker: None,
        }
    }

    /// Limits the memory that one request adds, for kernels that map it by small pages: the first
    /// part can then be used before the last part is mapped. Each request adds at least a unit of
    /// the device.
    #[must_use]
    pub fn adding(self, at_once: Bytes) -> HotplugMemory<'f, P> {
        HotplugMemory { at_once: at_once.frames(), ..self }
    }

    /// Returns the [`Memory`] to step the driver with.
    ///
    /// # Errors
    /// `hotplug` is not the engine that was lent first. Nothing has changed.
    pub fn with<'a, M: Mapping, H: Hooks>(
        &'a mut self,
        hotplug: &'a mut Hotplug<'f, P, M>,
        hooks: &'a mut H,
    ) -> Result<impl Memory + use<'a, 'f, P, M, H>, AnotherMachine> {
        if *self.machine.get_or_insert(hotplug.machine()) != hotplug.machine() {
            return Err(AnotherMachine);
        }
        Ok(Lent { own: self, hotplug, hooks })
    }

    /// Returns what prevents the removal of memory, if something does.
    #[must_use]
    pub fn blocker(&self) -> Option<Blocker> {
        self.blocker
    }
}

/// The machine is not the one that was lent first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnotherMachine;

impl fmt::Display for AnotherMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device's memory belongs to another machine")
    }
}

impl core::error::Error for AnotherMachine {}

impl<P: Platform, M: Mapping, H: Hooks> Memory for Lent<'_, '_, P, M, H> {
    fn announce(&mut self, region: PfnRange, node: Option<u16>) -> Result<(), Obstacle> {
        // The memory of a device without a node belongs to the first online node.
        let first = || self.hotplug.nodes().next().unwrap_or_default();
        let node = node.map_or_else(first, |node| NodeId(node.into()));
        if self.hotplug.regions().any(|(_, range)| range == region) {
            // The driver was started again.
            self.stop_shrinking();
            return Ok(());
        }
        // The region grows and shrinks by sections, so a policy may put as much of it into the
        // movable zone as its own kernel memory can support.
        let group = Group::Dynamic { unit: SECTION_FRAMES as u64 };
        match self.hotplug.announce(Announce { node, group, ..region.into() }) {
            Ok(_) => Ok(()),
            Err(AnnounceError::NoMetadata(_)) => {
                Err(Obstacle::Later("no memory for the list of ranges"))
            }
            Err(AnnounceError::Range(RangeError { kind, .. })) => Err(refused(kind)),
        }
    }

    fn run_at(&self, from: Pfn, within: PfnRange) -> Run {
        let is_present = |state| !matches!(state, State::Unknown | State::Absent);
        let (mut range, state) = self.hotplug.state_at(from, within.end());
        let plugged = is_present(state);
        while range.end() < within.end() {
            let (next, state) = self.hotplug.state_at(range.end(), within.end());
            match PfnRange::new(range.start(), next.end()) {
                Some(both) if !next.is_empty() && is_present(state) == plugged => range = both,
                _ => break,
            }
        }
        Run { range, plugged }
    }

    fn prepare_plug(&mut self, range: PfnRange, unit: u64) -> Result<PfnRange, Obstacle> {
        self.own.blocker = None;
        let at_once = self.own.at_once.max(unit) / unit * unit;
        let mut part = range.split_at(range.start().checked_add(at_once).unwrap_or(range.end())).0;
        loop {
            match self.hotplug.prepare_add(part) {
                Ok(addition) => {
                    self.own.addition = Some(addition);
                    return Ok(part);
                }
                // A smaller range needs fewer words and page tables, and may be mapped.
                Err(
                    error @ (AddError::NoMetadata(_)
                    | AddError::NoTables { .. }
                    | AddError::Range(RangeError {
                        kind: RangeErrorKind::Vetoed(_), ..
                    })),
                ) => {
                    let half = part.frames() / 2 / unit * unit;
                    match PfnRange::with_len(part.start(), half) {
                        Some(less) if !less.is_empty() => part = less,
                        _ => return Err(Obstacle::Later(not_prepared(error))),
                    }
                }
                Err(AddError::TooManyNodes(_)) => {
                    return Err(Obstacle::Never("the machine has too many nodes"));
                }
                Err(AddError::Range(RangeError { kind, .. })) => return Err(refused(kind)),
            }
        }
    }

    fn plugged(&mut self, range: PfnRange) {
        if let Some(addition) = self.own.addition.take() {
            // The addition was prepared on this machine, as `with` has checked. The same holds
            // below.
            self.hotplug.commit_add(addition).known();
            self.own.coming = self.own.coming.hull(range);
            self.own.below = PfnRange::EMPTY;
        }
    }

    fn bring_online(&mut self) -> Result<(), Obstacle> {
        while !self.own.coming.is_empty() {
            let coming = self.own.coming;
            let (run, state) = self.hotplug.state_at(coming.start(), coming.end());
            let end = match state {
                State::Offline => self.online(run)?,
                // It was removed again, or is online.
                _ => run.end(),
            };
            self.own.coming = coming.split_at(end).1;
        }
        Ok(())
    }

    fn plug_refused(&mut self, _range: PfnRange) {
        self.own.addition = None;
    }

    fn prepare_unplug(&mut self, wanted: Unplug) -> Result<PfnRange, Obstacle> {
        if self.own.shrink.as_ref().is_some_and(|shrinking| shrinking.wanted != wanted) {
            self.stop_shrinking();
        }
        match self.own.emptying.end(self.hotplug, self.hooks, self.own.budget) {
            Progress::Ready(empty) => self.went_offline(empty),
            Progress::Working => return Err(Obstacle::Working),
            _ => {}
        }
        if self.own.shrink.is_none()
            && let Some(range) = self.highest_offline(wanted)
            // Memory that holds the descriptors of online memory cannot be removed before that.
            && let Ok(removal) = self.hotplug.prepare_remove(range)
        {
            self.own.leaving = Some(removal);
            self.own.below = wanted.region.split_at(range.start()).0;
            return Ok(range);
        }
        let Unplug { region, surplus, at_once, unit } = wanted;
        let shrinking = self.own.shrink.get_or_insert_with(|| Shrinking {
            shrink: Shrink::new(ShrinkOptions {
                frames: surplus,
                unit,
                largest: at_once,
                ..region.into()
            }),
            wanted,
        });
        match shrinking.shrink.poll(self.hotplug, self.hooks, self.own.budget) {
            Progress::Ready(removal) => {
                let range = removal.range();
                // The next call continues where this one stopped, if it requests the rest.
                let surplus = surplus.saturating_sub(range.frames());
                shrinking.wanted = Unplug { surplus, at_once: at_once.min(surplus), ..wanted };
                self.own.leaving = Some(removal);
                self.own.blocker = None;
                Ok(range)
            }
            Progress::Working => Err(Obstacle::Working),
            over => {
                let blocker = over.pending();
                self.own.shrink = None;
                self.own.blocker = blocker;
                let why = blocker.map(|blocker| blocker.why);
                // A unit is not isolated against the kernel's will, nor if its memory is needed.
                if !matches!(why, None | Some(Why::Veto(_) | Why::NotEnoughFree { .. })) {
                    let HotplugMemory { emptying, budget, .. } = self.own;
                    let empty = emptying.begin((region, unit), self.hotplug, self.hooks, *budget);
                    if let Some(empty) = empty {
                        self.went_offline(empty);
                        return Err(Obstacle::Working);
                    }
                }
                Err(Obstacle::Later(why.map_or("no more memory can be removed", reason)))
            }
        }
    }

    fn unplugged(&mut self, _range: PfnRange) {
        if let Some(removal) = self.own.leaving.take() {
            self.hotplug.commit_remove(removal).known();
        }
    }

    fn unplug_refused(&mut self, _range: PfnRange) {
        self.stop_shrinking();
        self.own.below = PfnRange::EMPTY;
        if let Some(removal) = self.own.leaving.take() {
            self.hotplug.abandon_remove(removal, self.hooks).known();
        }
    }

    fn cancel(&mut self) {
        self.stop_shrinking();
    }
}

impl<P: Platform, M: Mapping, H: Hooks> Lent<'_, '_, P, M, H> {
    fn stop_shrinking(&mut self) {
        self.own.emptying.cancel(self.hotplug, self.hooks);
        if let Some(Shrinking { shrink, .. }) = self.own.shrink.take() {
            shrink.cancel(self.hotplug, self.hooks).known();
        }
    }

    /// Records that plugged memory is offline, so that it comes online again if it stays plugged.
    fn went_offline(&mut self, range: PfnRange) {
        self.own.coming = self.own.coming.hull(range);
    }

    /// Puts the offline range `run` online, and returns the end of the part that was handled. A
    /// poisoned pageblock, which the engine leaves offline, counts as handled.
    fn online(&mut self, run: PfnRange) -> Result<Pfn, Obstacle> {
        let (good, end) = match self.hotplug.online(run, self.own.online, self.hooks) {
            Ok(()) => return Ok(run.end()),
            Err(RangeError { range: frame, kind: RangeErrorKind::Poisoned }) => {
                let bad = frame.align_outward(PAGEBLOCK_FRAMES as u64);
                (run.split_at(bad.start()).0, bad.end())
            }
            Err(error) => return Err(self.not_online(error)),
        };
        if !good.is_empty() {
            let online = self.hotplug.online(good, self.own.online, self.hooks);
            online.map_err(|error| self.not_online(error))?;
        }
        Ok(end)
    }

    fn not_online(&mut self, error: RangeError) -> Obstacle {
        self.own.blocker = None;
        refused(error.kind)
    }

    /// Returns the highest plugged memory that is offline already, at most `wanted.at_once` frames.
    /// Searches below the last removal first, then everywhere.
    fn highest_offline(&self, wanted: Unplug) -> Option<PfnRange> {
        let below = self.own.below.intersection(wanted.region);
        let mut places = [below, wanted.region].into_iter();
        let units = places.find_map(|within| self.highest_offline_within(within, wanted))?;
        Some(last(units, wanted.at_once))
    }

    /// Searches a part of the region, in windows from the top down. The next request continues
    /// below, so that no window is searched twice.
    fn highest_offline_within(&self, within: PfnRange, wanted: Unplug) -> Option<PfnRange> {
        let frames = wanted.at_once.max(LEAST_WINDOW.next_multiple_of(wanted.unit));
        let mut rest = within;
        while !rest.is_empty() {
            let window = last(rest, frames);
            rest = rest.split_at(window.start()).0;
            let mut highest = None;
            let mut part = window;
            while !part.is_empty() {
                let (run, state) = self.hotplug.state_at(part.start(), part.end());
                let units = run.align_inward(wanted.unit);
                if state == State::Offline && !units.is_empty() {
                    highest = Some(units);
                }
                if run.is_empty() {
                    break;
                }
                part = part.split_at(run.end()).1;
            }
            if highest.is_some() {
                return highest;
            }
        }
        None
    }
}

/// The minimal size of a search window in frames.
const LEAST_WINDOW: u64 = 64 * SECTION_FRAMES as u64;

/// Returns the last `frames` of a range, or all of it.
fn last(range: PfnRange, frames: u64) -> PfnRange {
    let start = Pfn::new(range.end().number().saturating_sub(frames));
    start.map_or(range, |start| range.split_at(start).1)
}

impl<P: Platform> fmt::Debug for HotplugMemory<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotplugMemory")
            .field("online", &self.online)
            .field("addition", &self.addition)
            .field("coming", &self.coming)
            .field("leaving", &self.leaving)
            .field("shrink", &self.shrink.as_ref().map(|shrinking| &shrinking.shrink))
            .field("blocker", &self.blocker)
            .finish()
    }
}
