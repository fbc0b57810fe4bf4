//! Hides those capabilities of a virtio function whose registers are I/O ports.
//!
//! A device may offer the same registers several times, in memory and in I/O ports, and a driver
//! should use the first offer that it supports (virtio 1.3, 4.1.4.1). virtio-drivers uses the first
//! offer of all, and refuses the device if the registers are ports. With this view of configuration
//! space the first offer is in memory.

use super::config_space::ConfigSpace;
use super::pci::Buses;
use virtio_drivers::transport::pci::bus::{
    ConfigurationAccess, DeviceFunction, PCI_CAP_ID_VNDR, PciRoot,
};

/// Configuration space in which a function's capabilities in port BARs are hidden.
#[derive(Clone, Copy)]
pub(super) struct MemoryView {
    config: ConfigSpace,
    function: DeviceFunction,
    /// A bit for each word at which a hidden capability begins.
    hidden_words: u64,
}

/// The offset of the BAR's number in a virtio capability.
const BAR: u8 = 4;
const FIRST_BAR: u8 = 0x10;
const BAR_COUNT: u8 = 6;
/// A bit of a BAR: the BAR decodes ports.
const DECODES_PORTS: u32 = 1;
/// The mask of a capability's identifier. A hidden capability has identifier 0, which is
/// unassigned.
const IDENTIFIER: u32 = 0xff;

impl MemoryView {
    /// Returns the view of this function.
    pub(super) fn of(buses: &Buses, function: DeviceFunction) -> PciRoot<Self> {
        let config = buses.config;
        let is_behind_ports = |capability: u8| {
            let Some(register) = capability.checked_add(BAR) else { return false };
            let [bar, ..] = config.read_word(function, register).to_le_bytes();
            bar < BAR_COUNT && config.read_word(function, FIRST_BAR + 4 * bar) & DECODES_PORTS != 0
        };
        let virtio = buses.root.capabilities(function).filter(|found| found.id == PCI_CAP_ID_VNDR);
        let behind_ports =
            virtio.map(|found| found.offset).filter(|&offset| is_behind_ports(offset));
        let hidden_words = behind_ports.fold(0, |words, offset| words | bit(offset));
        PciRoot::new(MemoryView { config, function, hidden_words })
    }
}

fn bit(register: u8) -> u64 {
    1 << (register / 4)
}

impl ConfigurationAccess for MemoryView {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        let word = self.config.read_word(function, register);
        let is_hidden = function == self.function && self.hidden_words & bit(register) != 0;
        if is_hidden { word & !IDENTIFIER } else { word }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        self.config.write_word(function, register, word);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        *self
    }
}
