//! Accesses PCI's configuration space by memory or by ports.

use super::firmware::EcamArea;
use super::memory::{AddressSpace, MapError};
use crate::arch::{IoPort, mmio};
use core::ops::RangeInclusive;
use hotmem_directmap::Caching;
use hotmem_guest::to_usize;
use virtio_drivers::transport::pci::bus::{Cam, ConfigurationAccess, DeviceFunction};

/// An access method.
#[derive(Clone, Copy)]
pub(crate) enum ConfigSpace {
    /// Memory-mapped registers.
    Ecam {
        /// The address of bus 0. Buses from `first_bus` to `last_bus` are mapped.
        base: usize,
        first_bus: u8,
        last_bus: u8,
    },
    /// The ports 0xcf8 and 0xcfc.
    Ports {
        /// Selects a word.
        address: IoPort,
        /// The selected word.
        data: IoPort,
    },
    /// There is no access, so no device is found.
    Absent,
}

impl ConfigSpace {
    /// Maps an area that the firmware describes.
    pub(crate) fn ecam(area: EcamArea, memory: &mut AddressSpace) -> Result<Self, MapError> {
        let EcamArea { phys_addr, first_bus, last_bus } = area;
        let (first, end) = (u64::from(first_bus) << 20, (u64::from(last_bus) + 1) << 20);
        let bad_range = MapError::BadRange { phys_addr, len: end };
        let len = end.checked_sub(first).ok_or(bad_range)?;
        let start = phys_addr.checked_add(first).ok_or(bad_range)?;
        let mapped = memory.map_bytes(start, len, Caching::Uncached)?;
        let base = mapped.as_ptr().expose_provenance().wrapping_sub(to_usize(first));
        Ok(ConfigSpace::Ecam { base, first_bus, last_bus })
    }

    /// Returns the access by ports, if the processor has ports.
    pub(crate) fn ports() -> Self {
        match (IoPort::new(0xcf8), IoPort::new(0xcfc)) {
            (Some(address), Some(data)) => ConfigSpace::Ports { address, data },
            _ => ConfigSpace::Absent,
        }
    }
}

impl ConfigSpace {
    /// Returns the accessible buses.
    pub(crate) fn buses(&self) -> RangeInclusive<u8> {
        match *self {
            ConfigSpace::Ecam { first_bus, last_bus, .. } => first_bus..=last_bus,
            ConfigSpace::Ports { .. } | ConfigSpace::Absent => 0..=u8::MAX,
        }
    }
}

impl ConfigSpace {
    /// Returns the address of all 4096 bytes of a function's configuration space, if they are mapped.
    pub(crate) fn extended(&self, function: DeviceFunction) -> Option<usize> {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => (first_bus..=last_bus)
                .contains(&function.bus)
                .then(|| base + Cam::Ecam.cam_offset(function, 0) as usize),
            ConfigSpace::Ports { .. } | ConfigSpace::Absent => None,
        }
    }

    /// Writes a register of 16 bits. Its neighbour in the same word is not written.
    pub(crate) fn write_half(&mut self, function: DeviceFunction, register: u8, value: u16) {
        let (word, half) = (register & !3, register & 2);
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if (first_bus..=last_bus).contains(&function.bus) {
                    let offset = Cam::Ecam.cam_offset(function, word) + u32::from(half);
                    // SAFETY: the configuration space of `function.bus` is mapped. The callers use
                    // the registers as PCI specifies.
                    unsafe { mmio::write_u16(base + offset as usize, value) }
                }
            }
            ConfigSpace::Ports { address, data } => {
                select(address, function, word);
                if let Some(data) = data.checked_add(half.into()) {
                    // SAFETY: the callers use the registers as PCI specifies.
                    unsafe { data.write_u16(value) }
                }
            }
            ConfigSpace::Absent => {}
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
                unsafe { mmio::read_u32(base + offset as usize) }
            }
            ConfigSpace::Ports { address, data } => {
                select(address, function, register);
                // SAFETY: reading a register has no effect.
                unsafe { data.read_u32() }
            }
            ConfigSpace::Absent => u32::MAX,
        }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if (first_bus..=last_bus).contains(&function.bus) {
                    let offset = Cam::Ecam.cam_offset(function, register);
                    // SAFETY: the configuration space of `function.bus` is mapped. The callers use
                    // the registers as PCI specifies.
                    unsafe { mmio::write_u32(base + offset as usize, word) }
                }
            }
            ConfigSpace::Ports { address, data } => {
                select(address, function, register);
                // SAFETY: the callers use the registers as PCI specifies.
                unsafe { data.write_u32(word) }
            }
            ConfigSpace::Absent => {}
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        *self
    }
}

/// Selects a word. Interrupt handlers do not use these ports.
fn select(address: IoPort, function: DeviceFunction, register: u8) {
    let word = 1 << 31 | Cam::MmioCam.cam_offset(function, register);
    // SAFETY: a write to port 0xcf8 only selects the word.
    unsafe { address.write_u32(word) }
}
