//! Finds out by STATE requests which blocks are plugged.
//!
//! The walk goes through the region from the bottom up. It begins with the largest possible
//! request, halves the size after a mixed answer, and doubles the size after any other answer. If
//! memory that the memory manager uses is not plugged, the driver fails. Plugged blocks that the
//! memory manager does not know are adopted: the driver hands them to the memory manager without a
//! request to the device. They are unplugged instead if they exceed the requested size, if the
//! memory manager cannot take them, or if they do not fill a whole unit. So the walk adopts memory
//! that is plugged at the start, and corrects the driver's state after a device has acted against
//! its answers.

use super::driver::{Activity, Driver, Halt, first_frames};
use super::in_flight::Purpose;
use super::memory::{Memory, Run};
use super::refused::lower_part;
use super::request::{BlockState, Request, RequestKind};
use super::status::{Failure, Pending, Status};
use super::walk::{BlockWalk, Segment, Task};
use hotmem::{Pfn, PfnRange};

/// The number of walks after which the driver fails if `plugged_size` still disagrees with the
/// blocks.
const MAX_DISAGREEMENTS: u8 = 6;

impl Driver {
    /// Does one step of the walk.
    pub(super) fn synchronise<M: Memory>(
        &mut self,
        mut walk: BlockWalk,
        memory: &mut M,
    ) -> Result<(Request, Purpose), Halt> {
        match walk.task {
            Task::Query if walk.remaining.is_empty() => return Err(self.synchronised(&walk)),
            Task::Query => {
                let (range, segment) = self.segment(&walk, memory)?;
                if matches!(segment, Segment::Used | Segment::Free | Segment::Fragment) {
                    let range = first_frames(range, self.queryable_frames(&walk, segment));
                    return Ok((self.request(RequestKind::State, range)?, Purpose::Query(segment)));
                }
                if segment == Segment::UsedBeyondUsable {
                    walk.found_frames += range.frames();
                }
                walk.remaining = walk.remaining.split_at(range.end()).1;
            }
            Task::Adopt(range) => match self.prepare_plug(range, memory) {
                Ok(part) => {
                    memory.adopted(part);
                    self.plugged_frames += part.frames();
                    self.refused.accept(part);
                    walk.found_frames += part.frames();
                    let remaining = range.split_at(part.end()).1;
                    walk.continue_after(part);
                    if !remaining.is_empty() {
                        walk.task = Task::Adopt(remaining);
                    }
                    self.record_progress();
                }
                Err(Halt::Blocked(_)) => walk.task = Task::Discard(range),
                Err(halt) => return Err(halt),
            },
            Task::Discard(range) if !self.config.usable().covers(range) => walk.task = Task::Query,
            Task::Discard(range) => {
                let range = first_frames(range, self.max_request_frames());
                return Ok((self.request(RequestKind::Unplug, range)?, Purpose::Discard));
            }
        }
        self.activity = Activity::Synchronising(walk);
        Err(Halt::PollAgain)
    }

    /// Handles the device's answer about the walk's next blocks.
    pub(super) fn queried(
        &mut self,
        segment: Segment,
        range: PfnRange,
        state: BlockState,
    ) -> Result<(), Halt> {
        let Activity::Synchronising(mut walk) = self.activity else { return Ok(()) };
        let unit = self.config.unit_frames();
        let block = self.config.block_frames();
        let requested = self.wanted_frames();
        match (segment, state) {
            (Segment::Used, BlockState::Plugged) => {
                walk.found_frames += range.frames();
                walk.continue_after(range);
            }
            (Segment::Used, _) => return Err(Halt::Fail(Failure::Lost(range))),
            (_, BlockState::Unplugged) => walk.continue_after(range),
            (Segment::Free, BlockState::Plugged) if walk.found_frames < requested => {
                walk.task = Task::Adopt(first_frames(range, requested - walk.found_frames));
            }
            (_, BlockState::Plugged) => walk.task = Task::Discard(range),
            (_, BlockState::Mixed) if range.frames() <= block => {
                return Err(Halt::Fail(Failure::MixedBlock(range)));
            }
            (Segment::Free, BlockState::Mixed) if range.frames() <= unit => {
                walk.is_unit_mixed = true;
                walk.query_frames = range.frames() / 2;
            }
            (_, BlockState::Mixed) => walk.query_frames = range.frames() / 2,
        }
        self.activity = Activity::Synchronising(walk);
        Ok(())
    }

    /// Continues the walk after the device has unplugged unusable blocks.
    pub(super) fn discarded(&mut self, range: PfnRange) {
        if let Activity::Synchronising(walk) = &mut self.activity {
            walk.continue_after(range);
        }
    }

    /// Queries less than `range` next, because the device answered ERROR. `halt` is the result if
    /// `range` is at most a unit.
    pub(super) fn query_less(&mut self, range: PfnRange, halt: Halt) -> Result<(), Halt> {
        let unit = self.config.unit_frames();
        match &mut self.activity {
            Activity::Synchronising(walk) if range.frames() > unit => {
                walk.query_frames = lower_part(range, unit);
                Ok(())
            }
            _ => Err(halt),
        }
    }

    /// Queries unusable blocks again after the device refused to unplug them, because their state
    /// may have changed nevertheless.
    pub(super) fn query_again(&mut self) {
        if let Activity::Synchronising(walk) = &mut self.activity {
            walk.task = Task::Query;
        }
    }

    /// Ends the walk. After a walk over the whole device, checks that the sum of the plugged blocks
    /// equals `plugged_size`.
    fn synchronised(&mut self, walk: &BlockWalk) -> Halt {
        self.activity = Activity::Resizing;
        if self.status == Status::Synchronising {
            self.status = Status::Resizing;
        }
        if walk.covers_device {
            self.plugged_frames = walk.found_frames;
            if self.config.plugged() != self.plugged() {
                return Halt::RetryLater(Pending::PluggedSize);
            }
        }
        Halt::PollAgain
    }

    /// Starts a walk because `plugged_size` disagrees with the driver's own sum, or fails after too
    /// many walks.
    pub(super) fn handle_disagreement(&mut self) -> Halt {
        if self.disagreements == MAX_DISAGREEMENTS {
            let (claimed, found) = (self.config.plugged(), self.plugged());
            return Halt::Fail(Failure::PluggedSize { claimed, found });
        }
        self.disagreements += 1;
        self.start_walk(BlockWalk::of_device(&self.config));
        Halt::PollAgain
    }

    /// Returns the range of the walk's next blocks, and what the driver knows about them.
    fn segment<M: Memory>(
        &self,
        walk: &BlockWalk,
        memory: &M,
    ) -> Result<(PfnRange, Segment), Halt> {
        let (remaining, next) = (walk.remaining, walk.remaining.start());
        let until = |end: Pfn, segment| Ok((remaining.split_at(end).0, segment));
        let unit = self.config.unit_frames();
        let (reachable, usable) = (self.reachable.range, self.config.usable());
        if !usable.contains(next) {
            let from = next.align_up(unit).max(reachable.start());
            if !reachable.contains(from) {
                return Ok((remaining, Segment::BeyondUsable));
            }
            let run = self.run_at(from, reachable, memory)?;
            return match run.plugged {
                true if from == next => until(run.range.end(), Segment::UsedBeyondUsable),
                true => until(from, Segment::BeyondUsable),
                false => until(run.range.end(), Segment::BeyondUsable),
            };
        }
        // Inside a unit, in a mixed unit, and in a unit outside the reachable part of the region, the
        // walk handles blocks that the memory manager cannot use.
        if next.number().is_multiple_of(unit) && !walk.is_unit_mixed && reachable.contains(next) {
            let is_usable = self.reachable_units().contains(next);
            let within = if is_usable { self.reachable_units() } else { reachable };
            let run = self.run_at(next, within, memory)?;
            match (is_usable, run.plugged) {
                (true, true) => return until(run.range.end(), Segment::Used),
                (true, false) => return until(run.range.end(), Segment::Free),
                (false, true) => return until(run.range.end(), Segment::UsedBeyondUsable),
                (false, false) => {}
            }
        }
        let unit_end = next.align_down(unit).checked_add(unit).unwrap_or(usable.end());
        until(unit_end.min(usable.end()), Segment::Fragment)
    }

    /// Returns the number of frames of a segment that one request may query.
    fn queryable_frames(&self, walk: &BlockWalk, segment: Segment) -> u64 {
        let granularity = match segment {
            Segment::Fragment => self.config.block_frames(),
            _ => self.config.unit_frames(),
        };
        let frames = walk.query_frames.min(self.config.max_request_frames());
        (frames & !(granularity - 1)).max(granularity)
    }

    /// Calls [`Memory::run_at`], and checks that the result is a valid run that starts at `from`.
    pub(super) fn run_at<M: Memory>(
        &self,
        from: Pfn,
        within: PfnRange,
        memory: &M,
    ) -> Result<Run, Halt> {
        let run = memory.run_at(from, within);
        let unit = self.config.unit_frames();
        let is_valid = run.range.start() == from
            && !run.range.is_empty()
            && run.range.is_aligned(unit)
            && within.covers(run.range);
        if is_valid { Ok(run) } else { Err(Halt::Fail(Failure::WrongRange(run.range))) }
    }
}
