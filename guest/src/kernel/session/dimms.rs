//! Adds and removes the memory of memory slots as the host asks, and reports the results.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::dimms::{Dimms, Outcome};
use crate::kernel::fatal::give_up;
use crate::kernel::memory::FRAMES;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Bytes, Progress};
use hotmem_guest::cmdline::Touch;
use hotmem_guest::event::Event;

impl Session {
    /// Handles a change of a memory slot, or continues a removal. Returns whether there may be more to
    /// do.
    #[inline(never)]
    pub(super) fn step_dimms(&mut self) -> bool {
        if self.dimms.as_ref().is_some_and(Dimms::is_waiting) && self.balloon_is_returning_memory()
        {
            return false;
        }
        let Some(dimms) = &mut *self.dimms else { return false };
        let start_us = self.clock.now_us();
        let outcome = match dimms.step(self.engine) {
            None | Some(Progress::Idle) => return false,
            Some(Progress::Working) => return true,
            Some(Progress::Ready(outcome)) => outcome,
            Some(Progress::Pending(frames)) if self.request_for_tables(frames) => return false,
            Some(Progress::Pending(_)) => {
                let refused = self.dimms.as_mut().and_then(Dimms::refuse_waiting);
                let Some(outcome) = refused else { return false };
                outcome
            }
        };
        let us = self.clock.now_us().saturating_sub(start_us);
        let online = || Bytes(FRAMES.counts().online * FRAME_SIZE);
        match outcome {
            Outcome::Added(slot, dimm) => {
                let (addr, size) = (dimm.range.start().phys_addr(), dimm.range.bytes());
                let (node, online) = (dimm.proximity, online());
                self.report.event(&Event::DimmAdded { slot, addr, size, node, online, us });
                if self.options.touch != Touch::UpTo(Bytes::ZERO) {
                    self.engine.hooks.workload.memory_was_plugged();
                    self.touch_round = Some(TouchRound::default());
                }
                self.resizes += 1;
            }
            Outcome::Removed(slot, dimm) => {
                let (size, online) = (dimm.range.bytes(), online());
                self.report.event(&Event::DimmRemoved { slot, size, online });
                self.resizes += 1;
            }
            Outcome::Refused(slot, refusal) => {
                self.report.event(&Event::DimmRefused { slot, why: &refusal });
            }
            Outcome::Kept(slot, obstacle) => {
                self.report.event(&Event::DimmKept { slot, why: &obstacle });
            }
            Outcome::Vanished(slot, dimm) => {
                let range = dimm.range;
                give_up(format_args!("the memory of slot {slot}, {range}, has vanished"))
            }
        }
        true
    }
}
