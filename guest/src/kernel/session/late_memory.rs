//! Adds and removes late memory, and reports it.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::fatal::must;
use crate::kernel::late_memory::{Change, LateMemory};
use crate::kernel::memory::FRAMES;
use hotmem::Bytes;
use hotmem::geometry::FRAME_SIZE;
use hotmem_guest::cmdline::{ExitWhen, Touch};
use hotmem_guest::event::Event;

/// The time between the end of the balloon's reports and the next change, in which a host can see what
/// the guest holds.
const PAUSE_AFTER_REPORTS_US: u64 = 1_000_000;

impl Session {
    /// Returns whether late memory has been left as it is: the workload is at rest, and the balloon has
    /// reported what the workload has freed.
    pub(super) fn late_memory_is_at_rest(&self) -> bool {
        let is_working = self.touch_round.is_some() || self.verify_from.is_some();
        let reports_are_over = || {
            let idle_us = self.clock.now_us().saturating_sub(self.balloon_busy_us);
            self.balloon.is_none() || idle_us >= PAUSE_AFTER_REPORTS_US
        };
        !is_working && reports_are_over()
    }

    /// Continues a change of the late memory, or begins the next one when it is at rest: the memory is
    /// added and removed in turn as often as `hotmem.exit=resizes:N` says, and otherwise added once.
    /// Returns whether there may be more to do.
    #[inline(never)]
    pub(super) fn step_late_memory(&mut self) -> bool {
        let wanted = match self.options.exit {
            ExitWhen::Resizes(count) => count,
            _ => 1,
        };
        let is_at_rest = self.late_memory_is_at_rest();
        let may_change =
            |late: &&mut LateMemory| late.is_changing() || is_at_rest && late.changes() < wanted;
        let Some(late) = self.late_memory.as_mut().filter(may_change) else { return false };
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
