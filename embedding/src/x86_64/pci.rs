//! Accesses PCI's configuration space by ports 0xcf8 and 0xcfc.

use core::arch::asm;
use virtio_drivers::transport::pci::bus::{Cam, ConfigurationAccess, DeviceFunction};

/// The configuration space.
pub struct ConfigurationSpace;

impl ConfigurationAccess for ConfigurationSpace {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        select(function, register);
        let word: u32;
        // SAFETY: reading a register of the configuration space affects nothing in memory.
        unsafe { asm!("in eax, dx", in("dx") 0xcfc_u16, out("eax") word) };
        word
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        select(function, register);
        // SAFETY: the callers use the registers as PCI specifies.
        unsafe { asm!("out dx, eax", in("dx") 0xcfc_u16, in("eax") word) };
    }

    unsafe fn unsafe_clone(&self) -> Self {
        ConfigurationSpace
    }
}

fn select(function: DeviceFunction, register: u8) {
    let address = 1 << 31 | Cam::MmioCam.cam_offset(function, register);
    // SAFETY: a write to port 0xcf8 only selects the register.
    unsafe { asm!("out dx, eax", in("dx") 0xcf8_u16, in("eax") address) };
}
