//! Finds out by STATE requests which parts of a prepared range the device has unplugged, after an
//! UNPLUG whose effect is unknown: the device answered ERROR, or the driver that sent the request
//! ended before it knew the answer.

use super::driver::{Activity, Driver, Halt, first_frames};
use super::in_flight::Purpose;
use super::memory::Memory;
use super::refused::lower_part;
use super::request::{BlockState, Request, RequestKind};
use super::resolution::Resolution;
use super::status::{Failure, Pending};
use hotmem::PfnRange;

impl Driver {
    /// Returns the query for the next part.
    pub(super) fn resolve(&self, resolution: Resolution) -> Result<(Request, Purpose), Halt> {
        let frames = resolution.query_frames.min(self.config.max_request_frames());
        let range = first_frames(resolution.unknown, frames);
        if !self.config.usable().covers(range) {
            return Err(Halt::RetryLater(Pending::UsableRegion));
        }
        Ok((self.request(RequestKind::State, range)?, Purpose::Resolve))
    }

    /// Handles the device's answer about the next part.
    pub(super) fn resolved<M: Memory>(
        &mut self,
        range: PfnRange,
        state: BlockState,
        memory: &mut M,
    ) -> Result<(), Halt> {
        let Activity::Resolving(mut resolution) = self.activity else { return Ok(()) };
        if state == BlockState::Mixed {
            return self.resolve_less(range, Halt::Fail(Failure::HalfUnplugged(range)));
        }
        let unknown = resolution.unknown.split_at(range.end()).1;
        if !unknown.is_empty() && !memory.divide(range.end()) {
            return Err(Halt::Fail(Failure::HalfUnplugged(resolution.unknown)));
        }
        resolution.unknown = unknown;
        resolution.query_frames = range.frames().saturating_mul(2);
        self.activity = match (unknown.is_empty(), resolution.is_recovery) {
            (false, _) => Activity::Resolving(resolution),
            // Begin as if nothing had been prepared.
            (true, true) => Activity::Announcing,
            (true, false) => Activity::Resizing,
        };
        if state == BlockState::Plugged {
            memory.unplug_refused(range);
            return Ok(());
        }
        memory.unplugged(range);
        if !resolution.is_recovery {
            self.count_unplugged(range);
        }
        self.record_progress();
        Ok(())
    }

    /// Queries less than `range` next, because the device cannot say more about all of it. `halt` is
    /// the result if `range` is a single unit.
    pub(super) fn resolve_less(&mut self, range: PfnRange, halt: Halt) -> Result<(), Halt> {
        let unit = self.config.unit_frames();
        match &mut self.activity {
            Activity::Resolving(resolution) if range.frames() > unit => {
                resolution.query_frames = lower_part(range, unit);
                Ok(())
            }
            _ => Err(halt),
        }
    }
}
