//! Finds out by STATE requests which blocks are plugged.
//!
//! The walk goes through the region from the bottom up. It begins with the largest possible
//! request, halves the size after a mixed answer, and doubles the size after any other answer. If
//! memory that the memory manager uses is not plugged, the driver fails. Plugged blocks that the
//! memory manager does not know are adopted. They are unplugged instead if they exceed the
//! requested size, if the memory manager cannot take them, or if they do not fill a whole unit. So
//! the walk adopts memory that is plugged at the start, and corrects the driver's state after a
//! device has acted against its answers.

use super::driver::{Activity, Driver, Halt, Purpose, first_frames};
use super::memory::{Memory, Run};
use super::request::{BlockState, Request, RequestKind};
use super::status::{Failure, Pending, Status};
use super::walk::{Segment, Sync, Task};
use hotmem::{Pfn, PfnRange};

/// The number of walks after which the driver fails if `plugged_size` still disagrees with the
/// blocks.
const MAX_DISAGREEMENTS: u8 = 6;

impl Driver {
    /// Does one step of the walk.
    pub(super) fn synchronise<M: Memory>(
        &mut self,
        mut sync: Sync,
        memory: &mut M,
    ) -> Result<(Request, Purpose), Halt> {
        match sync.task {
            Task::Ask if sync.rest.is_empty() => return Err(self.synchronised(&sync)),
            Task::Ask => {
                let (range, segment) = self.segment(&sync, memory)?;
                if matches!(segment, Segment::Used | Segment::Free | Segment::Fragment) {
                    let range = first_frames(range, self.queryable_frames(&sync, segment));
                    return Ok((self.request(RequestKind::State, range)?, Purpose::Query(segment)));
                }
                if segment == Segment::UsedBeyondUsable {
                    sync.found_frames += range.frames();
                }
                sync.rest = sync.rest.split_at(range.end()).1;
            }
            Task::Adopt(range) => match self.prepare_plug(range, memory) {
                Ok(part) => {
                    memory.plugged(part);
                    self.plugged_frames += part.frames();
                    sync.found_frames += part.frames();
                    let rest = range.split_at(part.end()).1;
                    sync.pass(part);
                    if !rest.is_empty() {
                        sync.task = Task::Adopt(rest);
                    }
                    self.progressed();
                }
                Err(Halt::Blocked(_)) => sync.task = Task::Discard(range),
                Err(halt) => return Err(halt),
            },
            Task::Discard(range) if !self.config.usable().covers(range) => sync.task = Task::Ask,
            Task::Discard(range) => {
                return Ok((self.request(RequestKind::Unplug, range)?, Purpose::Discard));
            }
        }
        self.activity = Activity::Synchronising(sync);
        Err(Halt::Again)
    }

    /// Handles the device's answer about the walk's next blocks.
    pub(super) fn queried(
        &mut self,
        segment: Segment,
        range: PfnRange,
        state: BlockState,
    ) -> Result<(), Halt> {
        let Activity::Synchronising(mut sync) = self.activity else { return Ok(()) };
        let unit = self.config.unit_frames();
        let block = self.config.block_frames();
        let wanted = self.config.wanted_frames();
        match (segment, state) {
            (Segment::Used, BlockState::Plugged) => {
                sync.found_frames += range.frames();
                sync.pass(range);
            }
            (Segment::Used, _) => return Err(Halt::Fail(Failure::Lost(range))),
            (_, BlockState::Unplugged) => sync.pass(range),
            (Segment::Free, BlockState::Plugged) if sync.found_frames < wanted => {
                sync.task = Task::Adopt(first_frames(range, wanted - sync.found_frames));
            }
            (_, BlockState::Plugged) => sync.task = Task::Discard(range),
            (_, BlockState::Mixed) if range.frames() <= block => {
                return Err(Halt::Fail(Failure::MixedBlock(range)));
            }
            (Segment::Free, BlockState::Mixed) if range.frames() <= unit => {
                sync.mixed = true;
                sync.ask_frames = range.frames() / 2;
            }
            (_, BlockState::Mixed) => sync.ask_frames = range.frames() / 2,
        }
        self.activity = Activity::Synchronising(sync);
        Ok(())
    }

    /// Continues the walk after the device has unplugged unusable blocks.
    pub(super) fn discarded(&mut self, range: PfnRange) {
        if let Activity::Synchronising(sync) = &mut self.activity {
            sync.pass(range);
        }
    }

    /// Queries unusable blocks again after the device refused to unplug them, because their state
    /// may have changed nevertheless.
    pub(super) fn query_again(&mut self) {
        if let Activity::Synchronising(sync) = &mut self.activity {
            sync.task = Task::Ask;
        }
    }

    /// Ends the walk. After a walk over the whole device, checks that the sum of the plugged blocks
    /// equals `plugged_size`.
    fn synchronised(&mut self, sync: &Sync) -> Halt {
        self.activity = Activity::Resizing;
        if self.status == Status::Synchronising {
            self.status = Status::Resizing;
        }
        if sync.whole {
            self.plugged_frames = sync.found_frames;
            if self.config.plugged() != self.plugged() {
                return Halt::Later(Pending::PluggedSize);
            }
        }
        Halt::Again
    }

    /// Starts a walk because `plugged_size` disagrees with the driver's own sum, or fails after too
    /// many walks.
    pub(super) fn disagreed(&mut self) -> Halt {
        if self.disagreements == MAX_DISAGREEMENTS {
            let (claimed, found) = (self.config.plugged(), self.plugged());
            return Halt::Fail(Failure::PluggedSize { claimed, found });
        }
        self.disagreements += 1;
        self.start_sync(Sync::of_device(&self.config));
        Halt::Again
    }

    /// Returns the range of the walk's next blocks, and what the driver knows about them.
    fn segment<M: Memory>(&self, sync: &Sync, memory: &M) -> Result<(PfnRange, Segment), Halt> {
        let (rest, at) = (sync.rest, sync.rest.start());
        let until = |end: Pfn, segment| Ok((rest.split_at(end).0, segment));
        let unit = self.config.unit_frames();
        let (managed, usable) = (self.config.managed(), self.config.usable());
        if !usable.contains(at) {
            let from = at.align_up(unit);
            if !managed.contains(from) {
                return Ok((rest, Segment::BeyondUsable));
            }
            let run = self.run_at(from, managed, memory)?;
            return match run.plugged {
                true if from == at => until(run.range.end(), Segment::UsedBeyondUsable),
                true => until(from, Segment::BeyondUsable),
                false => until(run.range.end(), Segment::BeyondUsable),
            };
        }
        // Start at a whole unit only: inside a unit the walk handles blocks that the memory manager
        // cannot use.
        if at.number().is_multiple_of(unit) && !sync.mixed && managed.contains(at) {
            let whole = self.config.usable_units().contains(at);
            let within = if whole { self.config.usable_units() } else { managed };
            let run = self.run_at(at, within, memory)?;
            match (whole, run.plugged) {
                (true, true) => return until(run.range.end(), Segment::Used),
                (true, false) => return until(run.range.end(), Segment::Free),
                (false, true) => return until(run.range.end(), Segment::UsedBeyondUsable),
                (false, false) => {}
            }
        }
        let unit_end = at.align_down(unit).checked_add(unit).unwrap_or(usable.end());
        until(unit_end.min(usable.end()), Segment::Fragment)
    }

    /// Returns the number of frames of a segment that one request may query.
    fn queryable_frames(&self, sync: &Sync, segment: Segment) -> u64 {
        let grain = match segment {
            Segment::Fragment => self.config.block_frames(),
            _ => self.config.unit_frames(),
        };
        let ask = sync.ask_frames.min(self.config.max_request_frames());
        (ask & !(grain - 1)).max(grain)
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
        let sound = run.range.start() == from
            && !run.range.is_empty()
            && run.range.is_aligned(unit)
            && within.covers(run.range);
        if sound { Ok(run) } else { Err(Halt::Fail(Failure::Memory(run.range))) }
    }
}
