//! Accesses the registers of memory slots, which are I/O ports or in memory.

use super::memory::{AddressSpace, MapError};
use super::slot_region::{SLOT_BYTES, SlotPlace};
use crate::arch::{IoPort, mmio};
use hotmem_acpi::SlotRegisters;
use hotmem_directmap::Caching;

/// The registers of the slots.
pub(super) enum SlotAccess {
    /// I/O ports, from this one on.
    Ports(IoPort),
    /// Memory that is mapped, from this address on.
    Memory(usize),
}

impl SlotAccess {
    /// Maps the registers, if they are in memory.
    pub(super) fn open(place: SlotPlace, space: &mut AddressSpace) -> Result<Self, MapError> {
        Ok(match place {
            SlotPlace::Ports(port) => SlotAccess::Ports(port),
            SlotPlace::Memory(address, _) => {
                let mapped = space.map_bytes(address, SLOT_BYTES.into(), Caching::Uncached)?;
                SlotAccess::Memory(mapped.as_ptr().expose_provenance())
            }
        })
    }
}

/// `SlotRegion` has checked that the port exists.
fn port_at(first: IoPort, offset: u16) -> IoPort {
    first.checked_add(offset).unwrap_or(first)
}

impl SlotRegisters for SlotAccess {
    fn read_u32(&mut self, offset: u16) -> u32 {
        // SAFETY: the DSDT names the register, and reading it has no effect.
        unsafe {
            match *self {
                SlotAccess::Ports(first) => port_at(first, offset).read_u32(),
                SlotAccess::Memory(first) => mmio::read_u32(first + usize::from(offset)),
            }
        }
    }

    fn read_u8(&mut self, offset: u16) -> u8 {
        // SAFETY: as in `read_u32`.
        unsafe {
            match *self {
                SlotAccess::Ports(first) => port_at(first, offset).read_u8(),
                SlotAccess::Memory(first) => mmio::read_u8(first + usize::from(offset)),
            }
        }
    }

    fn write_u32(&mut self, offset: u16, value: u32) {
        // SAFETY: the DSDT names the register, and only the driver of the slots writes to it. The host
        // takes only memory that this kernel has removed.
        unsafe {
            match *self {
                SlotAccess::Ports(first) => port_at(first, offset).write_u32(value),
                SlotAccess::Memory(first) => mmio::write_u32(first + usize::from(offset), value),
            }
        }
    }

    fn write_u8(&mut self, offset: u16, value: u8) {
        // SAFETY: as in `write_u32`.
        unsafe {
            match *self {
                SlotAccess::Ports(first) => port_at(first, offset).write_u8(value),
                SlotAccess::Memory(first) => mmio::write_u8(first + usize::from(offset), value),
            }
        }
    }
}
