//! Defines a memory manager that checks its calls, and fails as a test has chosen.

use hotmem::{Pfn, PfnRange};
use hotmem_virtio::mem::{Memory, Obstacle, Reachable, Reason, Run, Transition, Unplug};
use std::cell::Cell;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Absent,
    PreparedToPlug,
    /// Plugged and usable.
    Plugged,
    PreparedToUnplug,
}

/// How a preparation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreparationFailure {
    Obstacle(Obstacle),
    /// Only the first unit is prepared, or the last one for an unplug.
    OneUnit,
}

pub(crate) struct TestMemory {
    region: PfnRange,
    unit_frames: u64,
    pub(crate) units: Vec<Unit>,
    /// Units that cannot be removed.
    pub(crate) pinned_units: Vec<bool>,
    /// How the next preparations fail.
    pub(crate) next_failures: VecDeque<PreparationFailure>,
    /// Why the next attempts to put memory online fail.
    pub(crate) online_obstacles: VecDeque<Obstacle>,
    /// Whether some plugged memory is not online.
    pub(crate) has_offline_memory: bool,
    /// Why the region cannot be announced.
    pub(crate) announce_obstacle: Option<Obstacle>,
    /// The part of the region that can be used, if it is not the whole region.
    pub(crate) reachable: Option<Reachable>,
    is_announced: bool,
    /// The kind of the unfinished preparation.
    unfinished_preparation: Option<Unit>,
    pub(crate) cancelled_preparations: u32,
    /// The number of units that `run_at` has read.
    pub(crate) units_read: Cell<usize>,
}

impl TestMemory {
    pub(crate) fn new(region: PfnRange, unit_frames: u64) -> TestMemory {
        let units = (region.frames() / unit_frames) as usize;
        TestMemory {
            region,
            unit_frames,
            units: vec![Unit::Absent; units],
            pinned_units: vec![false; units],
            next_failures: VecDeque::new(),
            online_obstacles: VecDeque::new(),
            has_offline_memory: false,
            announce_obstacle: None,
            reachable: None,
            is_announced: false,
            unfinished_preparation: None,
            cancelled_preparations: 0,
            units_read: Cell::new(0),
        }
    }

    pub(crate) fn range_of(&self, unit: usize) -> PfnRange {
        let start = self.region.start().checked_add(unit as u64 * self.unit_frames).unwrap();
        PfnRange::with_len(start, self.unit_frames).unwrap()
    }

    pub(crate) fn indices(&self, range: PfnRange) -> std::ops::Range<usize> {
        let index = |pfn: Pfn| {
            let frames = pfn.number() - self.region.start().number();
            assert_eq!(frames % self.unit_frames, 0, "{range} does not consist of whole units");
            (frames / self.unit_frames) as usize
        };
        assert!(self.region.covers(range), "{range} is not in the region");
        index(range.start())..index(range.end())
    }

    /// Returns whether all of the range is in this state.
    pub(crate) fn all_are(&self, range: PfnRange, unit: Unit) -> bool {
        self.units[self.indices(range)].iter().all(|&u| u == unit)
    }

    pub(crate) fn plugged_units(&self) -> u64 {
        self.units.iter().filter(|&&u| u == Unit::Plugged).count() as u64
    }

    pub(crate) fn is_working(&self) -> bool {
        self.unfinished_preparation.is_some()
    }

    fn change(&mut self, range: PfnRange, from: Unit, to: Unit) {
        assert!(!range.is_empty());
        assert!(self.all_are(range, from), "{range} is not {from:?} before it is {to:?}");
        let indices = self.indices(range);
        self.units[indices].fill(to);
    }

    /// Returns the next failure, or the maximal number of units.
    fn next_result(&mut self, kind: Unit) -> Result<u64, Obstacle> {
        assert!(self.is_announced, "the region was not announced");
        let prepared = |u: &Unit| matches!(u, Unit::PreparedToPlug | Unit::PreparedToUnplug);
        assert!(!self.units.iter().any(prepared), "another range is prepared already");
        let unfinished = self.unfinished_preparation.take();
        assert!(
            unfinished.is_none_or(|unfinished| unfinished == kind),
            "a preparation was not cancelled: {unfinished:?}"
        );
        match self.next_failures.pop_front() {
            Some(PreparationFailure::Obstacle(obstacle)) => {
                self.unfinished_preparation = (obstacle == Obstacle::Working).then_some(kind);
                Err(obstacle)
            }
            Some(PreparationFailure::OneUnit) => Ok(1),
            None => Ok(u64::MAX),
        }
    }
}

impl Memory for TestMemory {
    fn announce(
        &mut self,
        region: PfnRange,
        unit: u64,
        _node: Option<u16>,
    ) -> Result<Reachable, Obstacle> {
        assert_eq!((region, unit), (self.region, self.unit_frames));
        if let Some(obstacle) = self.announce_obstacle {
            return Err(obstacle);
        }
        self.is_announced = true;
        Ok(self.reachable.unwrap_or(region.into()))
    }

    fn transition(&self) -> Option<Transition> {
        let range_in = |unit| {
            let first = self.units.iter().position(|&u| u == unit)?;
            let last = self.units.iter().rposition(|&u| u == unit)?;
            PfnRange::new(self.range_of(first).start(), self.range_of(last).end())
        };
        let plug = range_in(Unit::PreparedToPlug).map(Transition::Plug);
        plug.or_else(|| range_in(Unit::PreparedToUnplug).map(Transition::Unplug))
    }

    fn divide(&mut self, at: Pfn) -> bool {
        let Some(Transition::Unplug(range)) = self.transition() else {
            panic!("nothing to divide")
        };
        assert!(range.start() < at && at < range.end());
        true
    }

    fn run_at(&self, from: Pfn, within: PfnRange) -> Run {
        assert!(within.contains(from));
        assert!(self.is_announced);
        let within = self.indices(within.split_at(from).1);
        let plugged = |i: usize| matches!(self.units[i], Unit::Plugged | Unit::PreparedToUnplug);
        let state = plugged(within.start);
        let end = within.clone().find(|&i| plugged(i) != state).unwrap_or(within.end);
        self.units_read.update(|units_read| units_read + end - within.start);
        let frames = (end - within.start) as u64 * self.unit_frames;
        Run { range: PfnRange::with_len(from, frames).unwrap(), plugged: state }
    }

    fn prepare_plug(&mut self, range: PfnRange, unit: u64) -> Result<PfnRange, Obstacle> {
        assert_eq!(unit, self.unit_frames);
        let frames = self
            .next_result(Unit::PreparedToPlug)?
            .saturating_mul(self.unit_frames)
            .min(range.frames());
        let part = PfnRange::with_len(range.start(), frames).unwrap();
        self.change(part, Unit::Absent, Unit::PreparedToPlug);
        Ok(part)
    }

    fn plugged(&mut self, range: PfnRange) {
        self.change(range, Unit::PreparedToPlug, Unit::Plugged);
        self.has_offline_memory = true;
    }

    fn bring_online(&mut self) -> Result<(), Obstacle> {
        let obstacle =
            if self.has_offline_memory { self.online_obstacles.pop_front() } else { None };
        self.has_offline_memory = obstacle.is_some();
        obstacle.map_or(Ok(()), Err)
    }

    fn plug_refused(&mut self, range: PfnRange) {
        self.change(range, Unit::PreparedToPlug, Unit::Absent);
    }

    fn prepare_unplug(&mut self, unplug: Unplug) -> Result<PfnRange, Obstacle> {
        let Unplug { region, total, max_frames, unit } = unplug;
        assert_eq!(unit, self.unit_frames);
        assert!(unit <= max_frames && max_frames <= total);
        let max = self.next_result(Unit::PreparedToUnplug)?.min(max_frames / unit);
        let indices = self.indices(region);
        let removable = |i: &usize| self.units[*i] == Unit::Plugged && !self.pinned_units[*i];
        let Some(last) = indices.clone().rfind(removable) else {
            return Err(Obstacle::Later(Reason::Other("nothing can be removed")));
        };
        let count = (indices.start..=last).rev().take_while(removable).count() as u64;
        let first = last + 1 - count.min(max) as usize;
        let start = self.range_of(first).start();
        let range = PfnRange::new(start, self.range_of(last).end()).unwrap();
        self.change(range, Unit::Plugged, Unit::PreparedToUnplug);
        Ok(range)
    }

    fn unplugged(&mut self, range: PfnRange) {
        self.change(range, Unit::PreparedToUnplug, Unit::Absent);
    }

    fn unplug_refused(&mut self, range: PfnRange) {
        self.change(range, Unit::PreparedToUnplug, Unit::Plugged);
    }

    fn cancel(&mut self) {
        self.cancelled_preparations += u32::from(self.unfinished_preparation.take().is_some());
    }
}
