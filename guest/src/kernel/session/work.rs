//! Runs the workload: touches memory, checks the memory, and frees it.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::balloon;
use crate::kernel::hooks::KernelHooks;
use crate::kernel::progress::WATCHDOG;
use hotmem::Pfn;
use hotmem_guest::event::Event;
use hotmem_guest::watchdog::Step;

impl Session {
    /// Begins the work in boot memory. Does nothing if the work has begun.
    pub(super) fn begin_work(&mut self) {
        if let Some(boot_memory) = self.unused_boot_memory.take() {
            self.engine.hooks.workload.use_any_memory(boot_memory, self.options.work);
            self.touch_round = Some(TouchRound::default());
        }
    }

    /// Touches some memory. Returns whether there is more to touch.
    pub(super) fn touch_some(&mut self) -> bool {
        if self.balloon_is_returning_memory() {
            return false;
        }
        let Some(touching) = &mut self.touch_round else { return false };
        WATCHDOG.enter(Step::Touch);
        let started = self.clock.now_us();
        let touched = self.engine.hooks.workload.touch_some();
        touching.us += self.clock.now_us().saturating_sub(started);
        if let Some(bytes) = touched {
            touching.bytes = touching.bytes + bytes;
            return true;
        }
        let TouchRound { bytes, us } = *touching;
        if self.request_from_balloon() {
            return false;
        }
        // The event is reported even if no memory was touched, because a test may wait for it.
        self.report.event(&Event::Touched { bytes, us });
        self.touched_memory = self.touched_memory + bytes;
        self.touch_round = None;
        self.verify_from = (!self.options.hold).then_some(Pfn::ZERO);
        false
    }

    /// Requests from the balloon the memory that the workload lacks. Returns whether the balloon
    /// will return any.
    fn request_from_balloon(&mut self) -> bool {
        let KernelHooks { balloon: memory, workload, .. } = &mut self.engine.hooks;
        let (Some(balloon), Some(memory)) = (&*self.balloon, memory) else { return false };
        let will_return = balloon.request_back(workload.missing_frames(), memory);
        if will_return {
            workload.try_again();
        }
        will_return
    }

    pub(super) fn balloon_is_returning_memory(&self) -> bool {
        self.engine.hooks.balloon.as_ref().is_some_and(balloon::is_returning_memory)
    }

    /// Checks some touched memory, if a check is running. Frees all touched memory when all of it
    /// has been checked. Returns whether a check was running.
    pub(super) fn verify_some(&mut self) -> bool {
        let Some(from) = self.verify_from else { return false };
        WATCHDOG.enter(Step::Verify);
        self.verify_from = self.engine.hooks.workload.verify_some(from);
        if self.verify_from.is_none() {
            let started = self.clock.now_us();
            let bytes = self.engine.hooks.workload.free_all();
            let us = self.clock.now_us().saturating_sub(started);
            self.report.event(&Event::Freed { bytes, us });
            self.report_written_and_verified();
        }
        true
    }
}
