//! Carries out the commands of the program that started the machine, most of which change the memory of
//! devices.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::dax::ChangeError;
use crate::kernel::engine::online_type;
use crate::kernel::memory::FRAMES;
use crate::kernel::nvdimm;
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Bytes, OnlineType, PfnRange};
use hotmem_guest::cmdline::{Namespace, Online};
use hotmem_guest::command::Command;
use hotmem_guest::event::{CxlEvent, Event};
use hotmem_guest::limits::MAX_DAX;
use hotmem_guest::nfit::PersistentRange;
use hotmem_guest::watchdog::Step;

impl Session {
    /// Binds the persistent memory of the machine, which commands may change. Its numbers follow those of
    /// CXL memory.
    #[inline(never)]
    pub(super) fn attach_persistent_memory(&mut self, ranges: &[PersistentRange]) {
        WATCHDOG.enter(Step::Nvdimm);
        let first = self.cxl.as_ref().map_or(0, |cxl| cxl.memory_count());
        nvdimm::bind(ranges, first, self.options, (self.engine, self.dax), &mut self.report);
        if self.options.nvdimm == Some(Namespace::SystemRam) {
            self.make_all_ram(first);
        }
    }

    /// Makes all memory from this number on RAM. Reports what does not become RAM.
    pub(super) fn make_all_ram(&mut self, first: usize) {
        for number in first..MAX_DAX {
            match self.make_ram(number, self.options.online) {
                Ok(()) | Err(ChangeError::NoMemory) => {}
                Err(error) => self.report.cxl(CxlEvent::Refused { device: None, why: &error }),
            }
        }
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
            Command::List => (0..MAX_DAX).for_each(|number| self.list(number)),
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
        let Ok(memory) = self.dax.get(number) else { return };
        let (size, node, ram) = (memory.range.bytes(), memory.node.0, memory.ram());
        let mode = if ram.is_some() { "system-ram" } else { "devdax" };
        let is_online = ram.is_some_and(|kind| kind != OnlineType::Offline);
        let online = if is_online { size } else { Bytes::ZERO };
        let movable = ram == Some(OnlineType::Movable);
        self.report.cxl(CxlEvent::Dax { memory: number, size, node, align, mode, online, movable });
    }

    /// Checks device memory, and makes it RAM.
    fn make_ram(&mut self, number: usize, online: Online) -> Result<(), ChangeError> {
        let memory = self.dax.get(number)?;
        let (range, was_ram) = (memory.range, memory.ram().is_some());
        if !was_ram {
            let (descriptors, data) = memory.check();
            self.report.event(&Event::Checked { device: number, descriptors, data });
        }
        let start_us = self.clock.now_us();
        memory.make_ram(self.engine, online_type(online))?;
        self.report_mode(number, "system_ram", start_us);
        if online != Online::Offline {
            self.engine.hooks.workload.set_dax(number, range);
        }
        Ok(())
    }

    /// Makes RAM device memory again.
    fn make_device(&mut self, number: usize, force: bool) -> Result<(), ChangeError> {
        let memory = self.dax.get(number)?;
        let start_us = self.clock.now_us();
        memory.make_device(self.engine, force)?;
        self.engine.hooks.workload.set_dax(number, PfnRange::EMPTY);
        self.report_mode(number, "device", start_us);
        self.dax.get(number)?.write_data();
        Ok(())
    }

    fn report_mode(&mut self, device: usize, mode: &'static str, start_us: u64) {
        let us = self.clock.now_us().saturating_sub(start_us);
        let counts = FRAMES.counts();
        let (online, free) = (Bytes(counts.online * FRAME_SIZE), Bytes(counts.free * FRAME_SIZE));
        self.report.event(&Event::Reconfigured { device, mode, online, free, us });
    }
}
