//! Accesses the memory-mapped configuration space of PCI Express (ECAM), limited to the buses that
//! it has.

use super::mmio::Mmio;
use super::registers::{Registers, Width};
use core::ops::RangeInclusive;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// The number of bytes of the configuration space of one bus.
pub(super) const BUS_BYTES: usize = 1 << 20;

/// The configuration space of some buses. A bus outside it has no devices.
pub(super) struct Ecam {
    space: Mmio,
    buses: RangeInclusive<u8>,
}

impl Ecam {
    /// `space` has [`BUS_BYTES`] for each of `buses`.
    pub(super) const fn new(space: Mmio, buses: RangeInclusive<u8>) -> Ecam {
        Ecam { space, buses }
    }

    /// Returns the offset of a register, or `None` if the bus is not one of the buses.
    fn offset(&self, function: DeviceFunction, register: u8) -> Option<usize> {
        let bus = function.bus.checked_sub(*self.buses.start())?;
        let in_bus = usize::from(function.device) << 15 | usize::from(function.function) << 12;
        let offset = usize::from(bus) * BUS_BYTES + in_bus + usize::from(register);
        self.buses.contains(&function.bus).then_some(offset)
    }
}

impl ConfigurationAccess for Ecam {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        let offset = self.offset(function, register);
        offset.map_or(u32::MAX, |offset| self.space.read(offset, Width::FourBytes))
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        if let Some(offset) = self.offset(function, register) {
            self.space.write(offset, Width::FourBytes, word);
        }
    }

    #[allow(unsafe_code)]
    unsafe fn unsafe_clone(&self) -> Ecam {
        // SAFETY: the caller promises to use the copy only for reads of registers that do not
        // change.
        Ecam { space: unsafe { self.space.alias() }, buses: self.buses.clone() }
    }
}
