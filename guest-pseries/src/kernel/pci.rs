//! Accesses PCI's configuration space by RTAS, and assigns addresses to the registers of virtio
//! devices, because the minimal firmware does not assign them.

use super::firmware;
use hotmem_guest_pseries::pci::{Bridge, ConfigTokens};
use hotmem_guest_pseries::rtas::Firmware;
use virtio_drivers::transport::pci::bus::{
    BarInfo, Command, ConfigurationAccess, DeviceFunction, MemoryBarType, PciRoot,
};

/// Configuration space of one host bridge.
pub(super) struct Config {
    bridge: Bridge,
    tokens: ConfigTokens,
}

impl Config {
    /// Makes a `Config` for `bridge`.
    pub(super) fn new(bridge: Bridge, tokens: ConfigTokens) -> Config {
        Config { bridge, tokens }
    }

    /// Returns three words: the first combines bus, device, function and register, the others are
    /// the bridge's unit ID (BUID).
    fn address(&self, function: DeviceFunction, register: u8) -> [u32; 3] {
        let DeviceFunction { bus, device, function } = function;
        let address = u32::from(bus) << 16
            | u32::from(device) << 11
            | u32::from(function) << 8
            | u32::from(register);
        let [high, low] = self.bridge.unit;
        [address, high, low]
    }
}

/// Returns the firmware, for accesses to configuration space.
fn machine() -> firmware::Machine {
    // SAFETY: the arguments of such an access are no addresses of memory.
    unsafe { firmware::Machine::new() }
}

impl ConfigurationAccess for Config {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        let [address, high, low] = self.address(function, register);
        let mut results = [0; 2];
        let args = [address, high, low, 4];
        machine().call(self.tokens.read, &args, &mut results);
        // A function that does not exist reads as all ones.
        if results[0] == 0 { results[1] } else { u32::MAX }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, value: u32) {
        let [address, high, low] = self.address(function, register);
        machine().call(self.tokens.write, &[address, high, low, 4, value], &mut [0]);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Config { bridge: self.bridge, tokens: self.tokens }
    }
}

/// Assigns addresses of the bridge's window to a function's 64-bit memory BARs, and enables memory
/// decoding and DMA of the function. `next` is the first free address of the window. In the window
/// the processor and the bus use the same addresses. Returns false if a BAR is invalid.
pub(super) fn enable(root: &mut PciRoot<Config>, function: DeviceFunction, next: &mut u64) -> bool {
    let mut bar = 0;
    while bar < 6 {
        let Ok(info) = root.bar_info(function, bar) else { return false };
        let wide = info.as_ref().is_some_and(BarInfo::takes_two_entries);
        if let Some(BarInfo::Memory { address_type: MemoryBarType::Width64, size, .. }) = info
            && size > 0
        {
            let address = next.next_multiple_of(size);
            root.set_bar_64(function, bar, address);
            *next = address + size;
        }
        bar += if wide { 2 } else { 1 };
    }
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER);
    true
}
