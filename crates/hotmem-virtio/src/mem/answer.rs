//! Applies the device's answer to the memory that the request named.

use super::driver::{Activity, Driver, Halt};
use super::in_flight::{InFlight, Purpose};
use super::memory::Memory;
use super::request::{BlockState, Response, ResponseError};
use super::resize::from_obstacle;
use super::resolution::Resolution;
use super::status::{Failure, Pending, Statistics};
use super::walk::BlockWalk;
use hotmem::PfnRange;

impl Driver {
    /// Applies the answer to the outstanding request.
    pub(super) fn handle_answer<M: Memory>(
        &mut self,
        bytes: &[u8],
        memory: &mut M,
    ) -> Result<(), Halt> {
        let Some(InFlight { request, purpose, is_overdue, .. }) = self.in_flight.take() else {
            self.statistics.stray_answers = self.statistics.stray_answers.wrapping_add(1);
            return Ok(());
        };
        if is_overdue {
            self.end_pending();
        }
        let range = request.range();
        let response = match Response::from_bytes(bytes) {
            Ok(response) => response,
            Err(error) => {
                // Undo the preparation of a plug, because the memory is not used yet. Memory to be
                // unplugged stays isolated, because the driver does not know whether it is still
                // plugged.
                if let Purpose::Plug = purpose {
                    memory.plug_refused(range);
                }
                return Err(self.malformed(error));
            }
        };
        self.statistics.count(response);
        match (purpose, response) {
            (Purpose::Plug, _) => self.plug_answered(range, response, memory),
            (Purpose::Unplug, _) => self.unplug_answered(range, response, memory),
            (Purpose::Discard, _) => self.discard_answered(range, response),
            (Purpose::Clear, _) => self.clear_answered(response),
            (Purpose::Resolve, Response::Ack { state }) => {
                let state = self.block_state(state)?;
                self.resolved(range, state, memory)
            }
            (Purpose::Resolve, Response::Error) => self.resolve_less(range, postponed(response)),
            (Purpose::Query(segment), Response::Ack { state }) => {
                let state = self.block_state(state)?;
                self.queried(segment, range, state)
            }
            (Purpose::Query(_), Response::Error) => self.query_less(range, postponed(response)),
            (Purpose::Resolve | Purpose::Query(_), Response::Nack | Response::Busy) => {
                Err(postponed(response))
            }
        }
    }

    fn plug_answered<M: Memory>(
        &mut self,
        range: PfnRange,
        response: Response,
        memory: &mut M,
    ) -> Result<(), Halt> {
        let is_acknowledged = matches!(response, Response::Ack { .. });
        if is_acknowledged && !self.has_failed() {
            memory.plugged(range);
            self.plugged_frames += range.frames();
            self.refused.accept(range);
            self.plugged_below = range.end();
            self.record_progress();
            return memory.bring_online().map_err(from_obstacle);
        }
        // Accept no new memory from a device that has failed.
        memory.plug_refused(range);
        if is_acknowledged {
            return Ok(());
        }
        if response == Response::Error && !self.has_failed() {
            // Query the blocks, because some devices answer ERROR after they have marked the blocks
            // as plugged.
            self.start_walk(BlockWalk::of_range(range));
        }
        self.plug_refused(range, response)
    }

    fn unplug_answered<M: Memory>(
        &mut self,
        range: PfnRange,
        response: Response,
        memory: &mut M,
    ) -> Result<(), Halt> {
        match response {
            Response::Ack { .. } => {
                memory.unplugged(range);
                self.count_unplugged(range);
                self.record_progress();
                Ok(())
            }
            Response::Error => {
                self.activity = Activity::Resolving(Resolution::of_own(range));
                self.unplug_refused(range, response)
            }
            Response::Nack | Response::Busy => {
                memory.unplug_refused(range);
                Err(postponed(response))
            }
        }
    }

    fn discard_answered(&mut self, range: PfnRange, response: Response) -> Result<(), Halt> {
        match response {
            Response::Ack { .. } => {
                self.discarded(range);
                self.refused.accept(range);
                self.record_progress();
                Ok(())
            }
            refusal => {
                self.query_again();
                self.plug_refused(range, refusal)
            }
        }
    }

    fn clear_answered(&mut self, response: Response) -> Result<(), Halt> {
        match response {
            Response::Ack { .. } => {
                self.activity = Activity::Resizing;
                self.record_progress();
                Ok(())
            }
            refusal => {
                if refusal == Response::Error && !self.has_failed() {
                    self.start_walk(BlockWalk::of_device(&self.config));
                }
                Err(postponed(refusal))
            }
        }
    }

    /// Counts a range that the device has unplugged.
    pub(super) fn count_unplugged(&mut self, range: PfnRange) {
        self.plugged_frames -= range.frames();
        self.refused.accept(range);
        self.plugged_below = self.plugged_below.min(range.start());
    }

    /// Records a refusal to plug `range`, or to unplug it from the bottom. After an ERROR, requests less
    /// at once, unless the request was as small as possible.
    fn plug_refused(&mut self, range: PfnRange, response: Response) -> Result<(), Halt> {
        let unit = self.config.unit_frames();
        match response == Response::Error && self.refused.refuse_plug(range, unit) {
            true => Ok(()),
            false => Err(postponed(response)),
        }
    }

    /// Records a refusal to unplug `range`, as [`plug_refused`](Self::plug_refused) does.
    fn unplug_refused(&mut self, range: PfnRange, response: Response) -> Result<(), Halt> {
        let unit = self.config.unit_frames();
        match response == Response::Error && self.refused.refuse_unplug(range, unit) {
            true => Ok(()),
            false => Err(postponed(response)),
        }
    }

    fn block_state(&mut self, state: u16) -> Result<BlockState, Halt> {
        BlockState::from_wire(state).map_err(|error| self.malformed(error))
    }

    fn malformed(&mut self, error: ResponseError) -> Halt {
        self.statistics.malformed_answers = self.statistics.malformed_answers.wrapping_add(1);
        Halt::Fail(Failure::Response(error))
    }
}

/// Converts a refusal to a halt after which the driver tries again later.
fn postponed(response: Response) -> Halt {
    Halt::RetryLater(match response {
        Response::Nack => Pending::Nack,
        Response::Busy => Pending::Busy,
        Response::Error | Response::Ack { .. } => Pending::DeviceError,
    })
}

impl Statistics {
    fn count(&mut self, response: Response) {
        let counter = match response {
            Response::Ack { .. } => &mut self.acks,
            Response::Nack => &mut self.nacks,
            Response::Busy => &mut self.busy_answers,
            Response::Error => &mut self.errors,
        };
        *counter = counter.wrapping_add(1);
    }
}
