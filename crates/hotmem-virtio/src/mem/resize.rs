//! Resizes towards the requested size: plugs the lowest gap, or unplugs the highest memory.

use super::driver::{Direction, Driver, Halt, NoRequest, Step, first_frames};
use super::in_flight::Purpose;
use super::memory::{Memory, Obstacle, Unplug};
use super::request::{Request, RequestKind};
use super::status::{Failure, Pending, Status};
use core::cmp::Ordering;
use hotmem::geometry::FRAME_SHIFT;
use hotmem::{Bytes, PfnRange};

impl Driver {
    /// Returns the next request towards the requested size.
    pub(super) fn resize<M: Memory>(
        &mut self,
        memory: &mut M,
    ) -> Result<(Request, Purpose), NoRequest> {
        if self.config.plugged() != self.plugged() {
            self.cancel(memory);
            return Err(self.handle_disagreement().into());
        }
        let wanted = self.wanted_frames();
        let direction = match self.plugged_frames.cmp(&wanted) {
            Ordering::Less => Some(Direction::Plug),
            Ordering::Greater => Some(Direction::Unplug),
            Ordering::Equal => None,
        };
        if self.direction_in_preparation.is_some() && self.direction_in_preparation != direction {
            self.cancel(memory);
        }
        if direction.is_some() && self.status == Status::Reached {
            self.status = Status::Resizing;
        }
        if direction != Some(Direction::Unplug) {
            memory.bring_online().map_err(from_obstacle)?;
        }
        match direction {
            Some(Direction::Plug) => Ok(self.plug(wanted - self.plugged_frames, memory)?),
            Some(Direction::Unplug) => Ok(self.unplug(self.plugged_frames - wanted, memory)?),
            None => {
                self.disagreements = 0;
                self.record_progress();
                self.status = match self.config.requested() == self.plugged() {
                    true => Status::Reached,
                    false => Status::Pending(self.shortfall()),
                };
                Err(NoRequest::Return(Step::Idle))
            }
        }
    }

    /// Returns why less than the requested size is plugged, although nothing is left to plug.
    fn shortfall(&self) -> Pending {
        let (requested, reachable) = (self.config.requested(), self.plugged());
        match self.reachable.obstacle {
            Some(reason) if self.wanted_frames() < self.config.wanted_frames() => {
                Pending::Region { requested, reachable, reason }
            }
            _ => {
                let unit = Bytes(self.config.unit_frames() << FRAME_SHIFT);
                Pending::Units { requested, reachable, unit }
            }
        }
    }

    /// Returns the request that plugs at most `frames` frames in the lowest gap.
    fn plug<M: Memory>(&mut self, frames: u64, memory: &mut M) -> Result<(Request, Purpose), Halt> {
        let gap = self.lowest_gap(frames.min(self.max_request_frames()), memory)?;
        let range = self.prepare_plug(gap, memory)?;
        Ok((self.request(RequestKind::Plug, range)?, Purpose::Plug))
    }

    /// Returns the largest number of frames that a request may plug or unplug, which is smaller
    /// where the device has answered ERROR.
    pub(super) fn max_request_frames(&self) -> u64 {
        self.config.max_request_frames().min(self.refused.max_frames(self.config.unit_frames()))
    }

    /// Returns the lowest range that is not plugged but can be plugged. The range has at most
    /// `frames` frames, even if the gap is larger.
    fn lowest_gap<M: Memory>(&self, frames: u64, memory: &M) -> Result<PfnRange, Halt> {
        let mut remaining = self.reachable_units().split_at(self.plugged_below).1;
        while !remaining.is_empty() {
            let run = self.run_at(remaining.start(), first_frames(remaining, frames), memory)?;
            if !run.plugged {
                return Ok(run.range);
            }
            remaining = remaining.split_at(run.range.end()).1;
        }
        let (usable, requested) = (self.config.usable_units(), self.config.requested());
        Err(Halt::RetryLater(match self.reachable.obstacle {
            // The usable region has enough memory, but not enough of it can be used.
            Some(reason) if usable.frames() >= self.wanted_frames() => {
                let reachable = self.reachable_units().bytes();
                Pending::Region { requested, reachable, reason }
            }
            _ => Pending::UsableRegion,
        }))
    }

    /// Prepares `range`, or its beginning, for plugging.
    pub(super) fn prepare_plug<M: Memory>(
        &mut self,
        range: PfnRange,
        memory: &mut M,
    ) -> Result<PfnRange, Halt> {
        let prepared = memory.prepare_plug(range, self.config.unit_frames());
        let part = self.check_prepared(Direction::Plug, prepared)?;
        if part.start() != range.start() || !range.covers(part) {
            return Err(Halt::Fail(Failure::WrongRange(part)));
        }
        Ok(part)
    }

    /// Returns the request that unplugs the highest memory that can be removed. `total` is the number
    /// of frames that this and later requests unplug.
    fn unplug<M: Memory>(
        &mut self,
        total: u64,
        memory: &mut M,
    ) -> Result<(Request, Purpose), Halt> {
        let unplug = Unplug {
            region: self.reachable_units(),
            total,
            max_frames: total.min(self.max_request_frames()),
            unit: self.config.unit_frames(),
        };
        let prepared = memory.prepare_unplug(unplug);
        let range = self.check_prepared(Direction::Unplug, prepared)?;
        if range.frames() > unplug.max_frames || !unplug.region.covers(range) {
            return Err(Halt::Fail(Failure::WrongRange(range)));
        }
        Ok((self.request(RequestKind::Unplug, range)?, Purpose::Unplug))
    }

    /// Records whether a preparation is in progress, and checks the range that was prepared.
    fn check_prepared(
        &mut self,
        direction: Direction,
        result: Result<PfnRange, Obstacle>,
    ) -> Result<PfnRange, Halt> {
        let in_progress = match (direction, result) {
            (_, Err(Obstacle::Working)) => true,
            // Memory beyond the returned range may stay isolated, also while the driver waits, so
            // the preparation of an unplug stays in progress.
            (Direction::Unplug, Ok(_) | Err(Obstacle::Later(_))) => true,
            _ => false,
        };
        self.direction_in_preparation = in_progress.then_some(direction);
        match result {
            Ok(range) if range.is_empty() || !range.is_aligned(self.config.unit_frames()) => {
                Err(Halt::Fail(Failure::WrongRange(range)))
            }
            Ok(range) => Ok(range),
            Err(obstacle) => Err(from_obstacle(obstacle)),
        }
    }
}

/// Converts an obstacle. After [`Obstacle::Never`], the driver does not try again until the requested
/// size changes.
pub(super) fn from_obstacle(obstacle: Obstacle) -> Halt {
    match obstacle {
        Obstacle::Working => Halt::PollAgain,
        Obstacle::Later(reason) => Halt::RetryLater(Pending::Memory(reason)),
        Obstacle::Never(reason) => Halt::Blocked(reason),
    }
}
