//! Takes memory out of use that machine checks have reported as bad.

use super::Session;
use crate::arch::take_bad_frame;
use crate::kernel::fatal::{give_up, must};
use hotmem::{Pfn, PfnRange, Poisoned};
use hotmem_guest::event::Event;

impl Session {
    /// Quarantines the frames that were reported since the last call. Ends the run if the kernel
    /// itself has lost data.
    pub(super) fn quarantine_bad_frames(&mut self) {
        while let Some(frame) = take_bad_frame() {
            let state = must("machine check", self.engine.hotplug.poison(frame));
            let was_in_use = state == Poisoned::InUse;
            if was_in_use && !self.abandon(frame) {
                give_up(format_args!("machine check: the kernel has lost the data of {frame}"));
            }
            self.report.event(&Event::BadFrame { addr: frame.phys_addr(), was_in_use });
        }
    }

    /// Frees a bad frame that an owner can do without. The engine then quarantines the frame.
    fn abandon(&mut self, frame: Pfn) -> bool {
        let frames = PfnRange::with_len(frame, 1).unwrap_or(PfnRange::EMPTY);
        let hooks = &mut self.engine.hooks;
        let balloon = hooks.balloon.as_mut();
        hooks.workload.abandon(frames) || balloon.is_some_and(|it| it.migrate(frames).is_some())
    }
}
