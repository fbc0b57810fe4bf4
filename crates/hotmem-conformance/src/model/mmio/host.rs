//! Does what a VMM can do with its device.

use super::super::kind::Kind;
use super::super::memory_device::NODE;
use super::Model;
use crate::device::{Host, Unsupported};

impl Host for Model {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        let Kind::Memory(device) = &mut self.kind else { return Err(Unsupported) };
        device.set_requested_size(bytes);
        self.host_changed();
        Ok(())
    }

    fn node(&mut self) -> Result<u16, Unsupported> {
        Ok(NODE)
    }

    fn take_interrupt(&mut self) -> Result<bool, Unsupported> {
        Ok(self.interrupts.take())
    }

    fn set_balloon_pages(&mut self, pages: u32) -> Result<(), Unsupported> {
        let Kind::Balloon(device) = &mut self.kind else { return Err(Unsupported) };
        device.set_num_pages(pages);
        self.host_changed();
        Ok(())
    }

    fn ask_statistics(&mut self) -> Result<(), Unsupported> {
        if let Some((number, chain)) = self.held.take() {
            self.give_back(number, &chain, 0);
        }
        Ok(())
    }

    fn statistic(&mut self, tag: u16) -> Result<Option<u64>, Unsupported> {
        let Kind::Balloon(device) = &self.kind else { return Err(Unsupported) };
        Ok(device.statistics.get(&tag).copied())
    }

    fn start_hints(&mut self) -> Result<(), Unsupported> {
        let Kind::Balloon(device) = &mut self.kind else { return Err(Unsupported) };
        device.start_hints();
        self.host_changed();
        Ok(())
    }
}
