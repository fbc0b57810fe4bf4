//! Accesses PCI's configuration space in memory, and gives addresses to BARs, as firmware does on a PC.

use crate::PrintedError;
use virtio_drivers::transport::pci::bus::{
    BarInfo, Cam, ConfigurationAccess, DeviceFunction, MemoryBarType, PciRoot,
};

/// The configuration space, in the identity map.
const CONFIGURATION_SPACE: *mut u8 = 0x40_1000_0000 as *mut u8;
/// The addresses for BARs.
const WINDOW: core::ops::Range<u32> = 0x1000_0000..0x3eff_0000;

/// The configuration space.
pub struct ConfigurationSpace;

impl ConfigurationAccess for ConfigurationSpace {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        // SAFETY: the boot code has mapped the registers. Reading one affects nothing in memory.
        unsafe { address(function, register).read_volatile() }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        // SAFETY: the callers use the registers as PCI specifies.
        unsafe { address(function, register).write_volatile(word) };
    }

    unsafe fn unsafe_clone(&self) -> Self {
        ConfigurationSpace
    }
}

fn address(function: DeviceFunction, register: u8) -> *mut u32 {
    CONFIGURATION_SPACE.wrapping_add(Cam::Ecam.cam_offset(function, register) as usize).cast()
}

/// Gives addresses to the BARs of all functions on bus 0.
pub(crate) fn assign_addresses() -> Result<(), PrintedError> {
    let mut root = PciRoot::new(ConfigurationSpace);
    let mut next = u64::from(WINDOW.start);
    for (function, _) in PciRoot::new(ConfigurationSpace).enumerate_bus(0) {
        let bars = root.bars(function).map_err(|_| "a BAR is invalid")?;
        for (index, bar) in (0..).zip(bars) {
            let Some(BarInfo::Memory { address_type, size, .. }) = bar else { continue };
            let start = next.next_multiple_of(size.max(1));
            next = start.saturating_add(size);
            if next > u64::from(WINDOW.end) {
                return Err("there are no addresses for a BAR".into());
            }
            match address_type {
                MemoryBarType::Width64 => root.set_bar_64(function, index, start),
                _ => root.set_bar_32(function, index, start as u32),
            }
        }
    }
    Ok(())
}
