//! Accesses PCI's configuration space by memory or by ports.

use super::acpi::EcamArea;
use super::memory::{AddressSpace, MapError};
use core::ops::RangeInclusive;
use hotmem_directmap::Caching;
use hotmem_guest::to_usize;
use virtio_drivers::transport::pci::bus::{Cam, ConfigurationAccess, DeviceFunction};
use x86_64::instructions::port::Port;

/// An access method.
#[derive(Clone, Copy)]
pub(crate) enum ConfigSpace {
    /// Memory-mapped registers.
    Ecam {
        /// The address of bus 0. Buses from `first_bus` to `last_bus` are mapped.
        base: *mut u32,
        first_bus: u8,
        last_bus: u8,
    },
    /// The ports 0xcf8 and 0xcfc.
    Ports,
}

// SAFETY: the pointer is the address of registers, which is the same for all CPUs.
unsafe impl Send for ConfigSpace {}

impl ConfigSpace {
    /// Maps an area that the firmware describes.
    pub(crate) fn ecam(area: EcamArea, memory: &mut AddressSpace) -> Result<Self, MapError> {
        let EcamArea { phys_addr, first_bus, last_bus } = area;
        let (first, end) = (u64::from(first_bus) << 20, (u64::from(last_bus) + 1) << 20);
        let bad_range = MapError::BadRange { phys_addr, len: end };
        let len = end.checked_sub(first).ok_or(bad_range)?;
        let start = phys_addr.checked_add(first).ok_or(bad_range)?;
        let mapped = memory.map_bytes(start, len, Caching::Uncached)?;
        let base = mapped.as_ptr().wrapping_sub(to_usize(first)).cast();
        Ok(ConfigSpace::Ecam { base, first_bus, last_bus })
    }
}

impl ConfigSpace {
    /// Returns the accessible buses.
    pub(crate) fn buses(&self) -> RangeInclusive<u8> {
        match *self {
            ConfigSpace::Ecam { first_bus, last_bus, .. } => first_bus..=last_bus,
            ConfigSpace::Ports => 0..=u8::MAX,
        }
    }
}

impl ConfigSpace {
    /// Writes a register of 16 bits. Its neighbour in the same word is not written.
    pub(crate) fn write_half(&mut self, function: DeviceFunction, register: u8, value: u16) {
        let (word, half) = (register & !3, register & 2);
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if (first_bus..=last_bus).contains(&function.bus) {
                    let offset = Cam::Ecam.cam_offset(function, word) + u32::from(half);
                    // SAFETY: the configuration space of `function.bus` is mapped. The callers use
                    // the registers as PCI specifies.
                    unsafe { base.byte_add(offset as usize).cast::<u16>().write_volatile(value) }
                }
            }
            ConfigSpace::Ports => {
                select(function, word);
                // SAFETY: the callers use the registers as PCI specifies.
                unsafe { Port::new(DATA + u16::from(half)).write(value) }
            }
        }
    }
}

impl ConfigurationAccess for ConfigSpace {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if !(first_bus..=last_bus).contains(&function.bus) {
                    return u32::MAX;
                }
                let offset = Cam::Ecam.cam_offset(function, register);
                // SAFETY: the configuration space of `function.bus` is mapped, so the register is
                // too. Reading the register has no effect.
                unsafe { base.byte_add(offset as usize).read_volatile() }
            }
            ConfigSpace::Ports => {
                let mut data = select(function, register);
                // SAFETY: reading a register has no effect.
                unsafe { data.read() }
            }
        }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if (first_bus..=last_bus).contains(&function.bus) {
                    let offset = Cam::Ecam.cam_offset(function, register);
                    // SAFETY: the configuration space of `function.bus` is mapped. The callers use
                    // the registers as PCI specifies.
                    unsafe { base.byte_add(offset as usize).write_volatile(word) }
                }
            }
            ConfigSpace::Ports => {
                let mut data = select(function, register);
                // SAFETY: the callers use the registers as PCI specifies.
                unsafe { data.write(word) }
            }
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        *self
    }
}

/// The port of the selected word.
const DATA: u16 = 0xcfc;

/// Selects a register, and returns the port of its data. Interrupt handlers do not use these ports.
fn select(function: DeviceFunction, register: u8) -> Port<u32> {
    let address = 1 << 31 | Cam::MmioCam.cam_offset(function, register);
    // SAFETY: a write to port 0xcf8 only selects the register.
    unsafe { Port::new(0xcf8).write(address) };
    Port::new(DATA)
}
