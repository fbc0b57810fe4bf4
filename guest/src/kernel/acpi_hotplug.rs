//! Drives QEMU's registers of ACPI hotplug for PCI. QEMU's PCs use ACPI hotplug by default; the
//! alternative is native PCI Express hotplug.
//!
//! QEMU's AML handles general-purpose event 1 by these registers (QEMU,
//! docs/specs/acpi_pci_hotplug.rst). This kernel has no AML interpreter, so it accesses the
//! registers itself. QEMU's bus numbers in these registers are not PCI bus numbers. The kernel
//! finds the number of a port when a device appears in the port, or when it has ejected the port's
//! device.

use super::general_events::GeneralEvents;
use super::pci::{Buses, MAX_PORTS};
use crate::arch::IoPort;

/// The port of the registers on machines with an ICH9.
const BASE: u16 = 0xcc0;
/// The offset of the register that reads a bit for each slot of the selected bus in which a device has
/// appeared.
const APPEARED: u16 = 0;
/// The offset of the register that reads a bit for each slot of the selected bus whose device should
/// be removed.
const REMOVAL_REQUESTED: u16 = 4;
/// The offset of the register that ejects the device of a slot of the selected bus.
const EJECT: u16 = 8;
const SELECT_BUS: u16 = 16;

/// The number of buses to query. QEMU numbers the buses with hot-plug from 0.
const BUS_COUNT: u32 = 32;
/// The bit of general-purpose event 1.
const HOT_PLUG_EVENT: u8 = 1 << 1;

/// The hot-plug registers and the known state of the ports.
pub(crate) struct AcpiHotplug {
    events: GeneralEvents,
    registers: Registers,
    /// Whether a device that should be removed is still present.
    has_pending_removal: bool,
    ports: [PortState; MAX_PORTS],
}

#[derive(Clone, Copy, Default)]
struct PortState {
    is_occupied: bool,
    /// The number that selects the port's bus, if it is known.
    bus: Option<u32>,
}

/// The changes on a bus.
pub(crate) struct BusChange {
    pub(crate) bus: u32,
    pub(crate) has_appeared: bool,
    pub(crate) removal_requested: bool,
}

impl AcpiHotplug {
    /// Returns the registers, or `None` if the machine has none.
    pub(crate) fn find(events: Option<GeneralEvents>, buses: &Buses) -> Option<Self> {
        let registers = Registers(IoPort::new(BASE)?);
        // All ones is the value of a port that does not exist.
        if registers.read(REMOVAL_REQUESTED) == u32::MAX {
            return None;
        }
        let mut ports = [PortState::default(); MAX_PORTS];
        for (number, port) in ports.iter_mut().enumerate() {
            port.is_occupied = buses.port_was_occupied(number);
        }
        Some(AcpiHotplug { events: events?, registers, has_pending_removal: false, ports })
    }

    /// Returns the changes since the last call, and the removals that
    /// [`postpone_removals`](Self::postpone_removals) has postponed. If there are none, the call reads
    /// only one I/O port.
    pub(crate) fn changes(&mut self) -> impl Iterator<Item = BusChange> + use<> {
        let has_happened = self.events.take(HOT_PLUG_EVENT);
        let buses = if has_happened || self.has_pending_removal { BUS_COUNT } else { 0 };
        self.has_pending_removal = false;
        let registers = self.registers;
        (0..buses).map(move |bus| {
            registers.write(SELECT_BUS, bus);
            BusChange {
                bus,
                has_appeared: registers.read(APPEARED) != 0,
                removal_requested: registers.read(REMOVAL_REQUESTED) != 0,
            }
        })
    }

    /// Returns the ports that have a device now and had no device before. If there is exactly one
    /// such port, records `bus` as its bus number.
    pub(crate) fn find_new_ports(&mut self, bus: u32, buses: &Buses) -> [bool; MAX_PORTS] {
        let mut new = [false; MAX_PORTS];
        for (number, (port, new)) in self.ports.iter_mut().zip(&mut new).enumerate() {
            *new = !port.is_occupied && buses.port_has_device(number);
            port.is_occupied |= *new;
        }
        if new.iter().filter(|&&new| new).count() == 1 {
            for (port, _) in self.ports.iter_mut().zip(new).filter(|(_, new)| *new) {
                port.bus = Some(bus);
            }
        }
        new
    }

    /// Returns the port whose bus number is `bus`, if it is known.
    pub(crate) fn port_of_bus(&self, bus: u32) -> Option<usize> {
        self.ports.iter().position(|port| port.bus == Some(bus))
    }

    /// Returns whether the port has a device and the number of its bus is not known.
    pub(crate) fn has_unknown_bus(&self, port: usize) -> bool {
        let PortState { is_occupied, bus } = self.ports[port];
        is_occupied && bus.is_none()
    }

    /// Records that the device of a port was ejected, and that the number of the port's bus is `bus`.
    pub(crate) fn mark_vacant(&mut self, port: usize, bus: u32) {
        self.ports[port] = PortState { is_occupied: false, bus: Some(bus) };
    }

    /// Makes the next call of [`changes`](Self::changes) report removals again.
    pub(crate) fn postpone_removals(&mut self) {
        self.has_pending_removal = true;
    }

    /// Ejects the device of a port, which must not be in use any more.
    pub(crate) fn eject(&mut self, port: usize) {
        if let Some(bus) = self.ports[port].bus {
            self.eject_bus(bus);
            self.mark_vacant(port, bus);
        }
    }

    /// Ejects the device of a bus, which must not be in use any more.
    pub(crate) fn eject_bus(&mut self, bus: u32) {
        self.registers.write(SELECT_BUS, bus);
        // Slot 0 is the only slot of a port.
        self.registers.write(EJECT, 1);
    }
}

/// The registers, from this port on.
#[derive(Clone, Copy)]
struct Registers(IoPort);

impl Registers {
    fn read(self, offset: u16) -> u32 {
        // SAFETY: the register belongs to QEMU's hot-plug, or does not exist. Reading it has no effect
        // except that it may clear state that nothing else uses.
        self.port(offset).map_or(u32::MAX, |port| unsafe { port.read_u32() })
    }

    fn write(self, offset: u16, value: u32) {
        if let Some(port) = self.port(offset) {
            // SAFETY: `find` has found the registers, and only this module uses them.
            unsafe { port.write_u32(value) }
        }
    }

    fn port(self, offset: u16) -> Option<IoPort> {
        self.0.checked_add(offset)
    }
}
