//! Adds and removes late memory, and reports it.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::fatal::must;
use crate::kernel::late_memory::Change;
use crate::kernel::memory::FRAMES;
use hotmem::Bytes;
use hotmem::geometry::FRAME_SIZE;
use hotmem_guest::cmdline::{ExitWhen, Touch};
use hotmem_guest::event::Event;

impl Session {
    /// Continues a change of the late memory, or begins the next one when the workload is at rest: the
    /// memory is added and removed in turn as often as `hotmem.exit=resizes:N` says, and otherwise added
    /// once. Returns whether there may be more to do.
    #[inline(never)]
    pub(super) fn step_late_memory(&mut self) -> bool {
        let wanted = match self.options.exit {
            ExitWhen::Resizes(count) => count,
            _ => 1,
        };
        let is_at_rest = self.touch_round.is_none() && self.verify_from.is_none();
        let Some(late) =
            self.late_memory.as_mut().filter(|late| is_at_rest && late.changes() < wanted)
        else {
            return false;
        };
        let step = late.step(self.engine, || self.clock.now_us());
        let Some(Change { is_removal, size, us }) = must("late memory", step) else { return true };
        let online = Bytes(FRAMES.counts().online * FRAME_SIZE);
        self.resizes += 1;
        if is_removal {
            self.report.event(&Event::LateRemoved { size, online, us });
        } else {
            self.report.event(&Event::LateAdded { size, online, us });
            if self.options.touch != Touch::UpTo(Bytes::ZERO) {
                self.engine.hooks.workload.memory_was_plugged();
                self.touch_round = Some(TouchRound::default());
            }
        }
        true
    }
}
