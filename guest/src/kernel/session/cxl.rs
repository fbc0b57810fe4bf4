//! Finds CXL memory, and carries out the commands of the program that started the machine.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::cxl::{ChangeError, Cxl, CxlMemory, Outcome};
use crate::kernel::engine::online_type;
use crate::kernel::firmware::CxlFirmware;
use crate::kernel::memory::FRAMES;
use crate::kernel::pci::FoundDevices;
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Bytes, OnlineType, PfnRange};
use hotmem_guest::cmdline::{CxlMode, Online, Touch};
use hotmem_guest::command::Command;
use hotmem_guest::cxl::MAX_CXL;
use hotmem_guest::event::{CxlEvent, Event};
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
            (&mut self.buses, self.engine),
            (self.clock, self.options),
            &mut self.report,
        ));
        if mode == CxlMode::SystemRam {
            for number in 0..MAX_CXL {
                match self.make_ram(number, self.options.online) {
                    Ok(()) | Err(ChangeError::NoMemory) => {}
                    Err(error) => {
                        self.report.cxl(CxlEvent::Refused { device: None, why: &error });
                    }
                }
            }
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

    /// Carries out the next command. Returns whether there was one.
    #[inline(never)]
    pub(super) fn step_commands(&mut self) -> bool {
        let Some(command) = self.commands.as_mut().and_then(|port| port.next()) else {
            return false;
        };
        WATCHDOG.enter(Step::Resize);
        match command {
            Ok(command) => match self.carry_out(command) {
                Ok(()) => self.report.cxl(CxlEvent::Answered { why: None }),
                Err(error) => self.refuse(&error),
            },
            Err(error) => self.refuse(&error),
        }
        true
    }

    fn refuse(&mut self, why: &dyn fmt::Display) {
        self.report.cxl(CxlEvent::Answered { why: Some(why) });
    }

    fn carry_out(&mut self, command: Command) -> Result<(), ChangeError> {
        match command {
            Command::List => (0..MAX_CXL).for_each(|number| self.list(number)),
            Command::ToRam { number, online } => self.make_ram(number, online)?,
            Command::ToDevice { number, force } => self.make_device(number, force)?,
            Command::Touch => {
                self.engine.hooks.workload.memory_was_plugged();
                self.touch_round = Some(TouchRound::default());
            }
            Command::End => {
                if let Some(port) = &mut self.commands {
                    port.has_ended = true;
                }
            }
        }
        Ok(())
    }

    fn list(&mut self, number: usize) {
        let align = Bytes(self.options.compound.frames() * FRAME_SIZE);
        let Ok(memory) = memory_of(&mut self.cxl, number) else { return };
        let (size, node, ram) = (memory.range.bytes(), memory.node.0, memory.ram());
        let mode = if ram.is_some() { "system-ram" } else { "devdax" };
        let is_online = ram.is_some_and(|kind| kind != OnlineType::Offline);
        let online = if is_online { size } else { Bytes::ZERO };
        let movable = ram == Some(OnlineType::Movable);
        self.report.cxl(CxlEvent::Dax { memory: number, size, node, align, mode, online, movable });
    }

    /// Checks device memory, and makes it RAM.
    fn make_ram(&mut self, number: usize, online: Online) -> Result<(), ChangeError> {
        let memory = memory_of(&mut self.cxl, number)?;
        let (range, was_ram) = (memory.range, memory.ram().is_some());
        if !was_ram {
            let (descriptors, data) = memory.check();
            self.report.event(&Event::Checked { device: number, descriptors, data });
        }
        let start_us = self.clock.now_us();
        memory.make_ram(self.engine, online_type(online))?;
        self.report_mode(number, "system_ram", start_us);
        if online != Online::Offline {
            self.engine.hooks.workload.set_cxl(number, range);
        }
        Ok(())
    }

    /// Makes RAM device memory again.
    fn make_device(&mut self, number: usize, force: bool) -> Result<(), ChangeError> {
        let memory = memory_of(&mut self.cxl, number)?;
        let start_us = self.clock.now_us();
        memory.make_device(self.engine, force)?;
        self.engine.hooks.workload.set_cxl(number, PfnRange::EMPTY);
        self.report_mode(number, "device", start_us);
        memory_of(&mut self.cxl, number)?.write_data();
        Ok(())
    }

    fn report_mode(&mut self, device: usize, mode: &'static str, start_us: u64) {
        let us = self.clock.now_us().saturating_sub(start_us);
        let counts = FRAMES.counts();
        let (online, free) = (Bytes(counts.online * FRAME_SIZE), Bytes(counts.free * FRAME_SIZE));
        self.report.event(&Event::Reconfigured { device, mode, online, free, us });
    }
}

/// Returns the memory with this number.
fn memory_of<'c>(
    cxl: &'c mut Option<&'static mut Cxl>,
    number: usize,
) -> Result<&'c mut CxlMemory, ChangeError> {
    let memory = cxl.as_mut().and_then(|cxl| cxl.memories.get_mut(number)?.as_mut());
    memory.ok_or(ChangeError::NoMemory)
}
