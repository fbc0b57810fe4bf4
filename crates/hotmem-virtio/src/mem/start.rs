//! Starts the driver: announces the region, and handles memory that is already plugged.

use super::driver::{Activity, Driver, Halt};
use super::in_flight::Purpose;
use super::leftover::Leftover;
use super::memory::{Memory, Obstacle, Transition};
use super::request::Request;
use super::resolution::Resolution;
use super::status::{Failure, Pending, Status};
use super::walk::BlockWalk;
use hotmem::{Bytes, PfnRange};

impl Driver {
    /// Sets how to treat memory that is already plugged at the start. Call it before the first
    /// step. The default is [`Leftover::Adopt`].
    pub fn set_leftover(&mut self, leftover: Leftover) {
        self.leftover = leftover;
    }

    pub(super) fn announce<M: Memory>(
        &mut self,
        memory: &mut M,
    ) -> Result<(Request, Purpose), Halt> {
        let (managed, unit) = (self.config.managed(), self.config.unit_frames());
        let announced = memory.announce(managed, unit, self.config.node());
        self.reachable = announced.map_err(|obstacle| match obstacle {
            Obstacle::Working => Halt::PollAgain,
            Obstacle::Later(reason) => Halt::RetryLater(Pending::Memory(reason)),
            Obstacle::Never(reason) => Halt::Fail(Failure::Region(reason)),
        })?;
        let reachable = self.reachable.range;
        if reachable.is_empty() || !reachable.is_aligned(unit) || !managed.covers(reachable) {
            return Err(Halt::Fail(Failure::WrongRange(reachable)));
        }
        // An earlier driver may have ended at any moment.
        memory.cancel();
        match memory.transition() {
            // If the device has plugged the range, the walk finds it and adopts it.
            Some(Transition::Plug(range)) => memory.plug_refused(range),
            Some(Transition::Unplug(range)) => {
                if !reachable.covers(range) || !range.is_aligned(unit) {
                    return Err(Halt::Fail(Failure::WrongRange(range)));
                }
                self.activity = Activity::Resolving(Resolution::of_earlier(range));
                return Err(Halt::PollAgain);
            }
            None => {}
        }
        let run = self.run_at(reachable.start(), reachable, memory)?;
        // If memory of the region is present, an earlier driver on this instance plugged it, so the
        // walk must find out which blocks are plugged.
        let unused = !run.plugged && run.range == reachable;
        if unused && self.config.plugged() == Bytes::ZERO {
            self.activity = Activity::Resizing;
            self.status = Status::Resizing;
        } else if unused && self.leftover == Leftover::UnplugAll {
            self.activity = Activity::Clearing;
        } else {
            self.start_walk(BlockWalk::of_device(&self.config));
        }
        Err(Halt::PollAgain)
    }

    /// Returns the whole units of the usable region that the memory manager can use.
    pub(super) fn reachable_units(&self) -> PfnRange {
        self.config.usable_units().intersection(self.reachable.range)
    }

    /// Returns the requested size, limited by the part of the region that the memory manager can use
    /// and rounded down to whole units, in frames.
    pub(super) fn wanted_frames(&self) -> u64 {
        self.config.wanted_frames().min(self.reachable.range.frames())
    }
}
