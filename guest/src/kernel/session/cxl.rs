//! Finds CXL memory, and handles events of dynamic capacity.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::cxl::{Cxl, Outcome};
use crate::kernel::firmware::CxlFirmware;
use crate::kernel::memory::FRAMES;
use crate::kernel::pci::FoundDevices;
use crate::kernel::progress::WATCHDOG;
use hotmem::Bytes;
use hotmem::geometry::FRAME_SIZE;
use hotmem_guest::cmdline::{CxlMode, Touch};
use hotmem_guest::event::CxlEvent;
use hotmem_guest::limits::MAX_DEVICES;
use hotmem_guest::watchdog::Step;

impl Session {
    /// Opens the CXL devices among those found.
    #[inline(never)]
    pub(super) fn attach_cxl(&mut self, firmware: CxlFirmware, found: &FoundDevices) {
        let Some(mode) = self.options.cxl else { return };
        WATCHDOG.enter(Step::Device);
        let buses = &self.buses;
        let mut is_cxl = [false; MAX_DEVICES];
        for ((function, _), is_cxl) in found.iter().zip(&mut is_cxl) {
            *is_cxl = buses.info(function).is_some_and(|info| Cxl::is_at(&info));
        }
        let functions = found
            .iter()
            .zip(is_cxl)
            .filter(|&(_, is_cxl)| is_cxl)
            .map(|((function, _), _)| function);
        self.cxl = Some(Cxl::open(
            firmware,
            functions,
            (&mut self.buses, self.engine, self.dax),
            (self.clock, self.options),
            &mut self.report,
        ));
        if mode == CxlMode::SystemRam {
            self.make_all_ram(0);
        }
    }

    /// Handles events of dynamic capacity, and reports what happened to the extents. Returns whether there
    /// may be more.
    #[inline(never)]
    pub(super) fn step_cxl(&mut self) -> bool {
        let Some(cxl) = &mut self.cxl else { return false };
        let (start_us, mut has_added) = (self.clock.now_us(), false);
        let report = &mut self.report;
        let has_happened = cxl.step(self.engine, self.clock, &mut |memory, outcome| {
            let us = self.clock.now_us().saturating_sub(start_us);
            let online = Bytes(FRAMES.counts().online * FRAME_SIZE);
            has_added |= matches!(outcome, Outcome::Added(_));
            let (change, range) = match outcome {
                Outcome::Added(range) => ("added", range),
                Outcome::Removed(range) => ("removed", range),
                Outcome::Refused(range, why) => {
                    let (addr, size) = (range.start().phys_addr(), range.bytes());
                    return report.cxl(CxlEvent::Kept { memory, addr, size, why });
                }
                Outcome::EventsLost(count) => {
                    return report.cxl(CxlEvent::EventsLost { memory, count });
                }
                Outcome::Ignored(why) => {
                    return report.cxl(CxlEvent::EventIgnored { memory, why: &why });
                }
                Outcome::Failed(why) => {
                    return report.cxl(CxlEvent::RequestFailed { memory, why });
                }
                Outcome::GivenUp => return report.cxl(CxlEvent::GivenUp { memory }),
            };
            let (addr, size) = (range.start().phys_addr(), range.bytes());
            report.cxl(CxlEvent::Extent { memory, change, addr, size, online, us });
        });
        if has_added && self.options.touch != Touch::UpTo(Bytes::ZERO) {
            self.engine.hooks.workload.memory_was_plugged();
            self.touch_round = Some(TouchRound::default());
        }
        has_happened
    }
}
