//! A virtio function as a driver sees it that uses memory alone.
//!
//! A device may offer the same registers several times, in memory and behind I/O ports, and the
//! driver uses the first that it is able to (virtio 1.3, 4.1.4.1). virtio-drivers takes the first
//! of all and refuses the device if that is behind ports.

use super::config_space::ConfigSpace;
use super::pci::Buses;
use virtio_drivers::transport::pci::bus::{
    ConfigurationAccess, DeviceFunction, PCI_CAP_ID_VNDR, PciRoot,
};

/// Configuration space in which capabilities of one function are hidden that name a BAR of ports.
#[derive(Clone, Copy)]
pub(super) struct MemoryView {
    config: ConfigSpace,
    function: DeviceFunction,
    /// A bit for each word in which such a capability begins.
    hidden: u64,
}

/// Of a virtio capability: the number of its BAR.
const BAR: u8 = 4;
const FIRST_BAR: u8 = 0x10;
const BARS: u8 = 6;
/// Of a BAR: it is one of ports.
const PORTS: u32 = 1;
/// The identifier of a capability: 0 has no meaning to anybody.
const IDENTIFIER: u32 = 0xff;

impl MemoryView {
    /// Returns what a driver of this function is to see.
    pub(super) fn of(buses: &Buses, function: DeviceFunction) -> PciRoot<Self> {
        let config = buses.config;
        let is_behind_ports = |capability: u8| {
            let Some(register) = capability.checked_add(BAR) else { return false };
            let [bar, ..] = config.read_word(function, register).to_le_bytes();
            bar < BARS && config.read_word(function, FIRST_BAR + 4 * bar) & PORTS != 0
        };
        let virtio = buses.root.capabilities(function).filter(|found| found.id == PCI_CAP_ID_VNDR);
        let behind_ports = virtio.map(|found| found.offset).filter(|&at| is_behind_ports(at));
        let hidden = behind_ports.fold(0, |hidden, at| hidden | bit(at));
        PciRoot::new(MemoryView { config, function, hidden })
    }
}

fn bit(register: u8) -> u64 {
    1 << (register / 4)
}

impl ConfigurationAccess for MemoryView {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        let word = self.config.read_word(function, register);
        let is_hidden = function == self.function && self.hidden & bit(register) != 0;
        if is_hidden { word & !IDENTIFIER } else { word }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        self.config.write_word(function, register, word);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        *self
    }
}
