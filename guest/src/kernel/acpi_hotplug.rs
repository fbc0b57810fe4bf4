//! PCI hot-plug by ACPI, which QEMU's PCs use unless they are configured for PCI Express hot-plug.
//!
//! QEMU's AML handles general-purpose event 1 by these registers (QEMU,
//! docs/specs/acpi_pci_hotplug.rst). This kernel has no AML interpreter: it reads the registers
//! directly, and learns the bus of a register's bus number when a device appears.

use super::pci::{Buses, MAX_PORTS};
use x86_64::instructions::port::Port;

/// The port of the registers on machines with an ICH9.
const BASE: u16 = 0xcc0;
/// A bit for each slot of the selected bus in which a device has appeared, at any time.
const APPEARED: u16 = BASE;
/// A bit for each slot whose device should be removed.
const LEAVING: u16 = BASE + 4;
/// Ejects the device of a slot.
const EJECT: u16 = BASE + 8;
const SELECT_BUS: u16 = BASE + 16;

/// The number of buses to query: QEMU numbers those with hot-plug from 0.
const BUSES: u32 = 32;
/// General-purpose event 1.
const EVENT: u8 = 1 << 1;

/// The hot-plug registers and the known state of the ports.
pub(crate) struct AcpiHotplug {
    /// The port of the status of general-purpose events, which are cleared by writing ones.
    events: u16,
    /// Whether a device that should be removed is still present.
    again: bool,
    ports: [Occupant; MAX_PORTS],
}

#[derive(Clone, Copy, Default)]
struct Occupant {
    answers: bool,
    /// The number that selects the port's bus, if it is known.
    bus: Option<u32>,
}

/// The changes on a bus.
pub(crate) struct Change {
    pub(crate) bus: u32,
    pub(crate) appeared: bool,
    pub(crate) leaving: bool,
}

impl AcpiHotplug {
    /// Finds the registers. `events` is the port of the status of general-purpose events, if there
    /// is one.
    pub(crate) fn find(events: Option<u16>, buses: &Buses) -> Option<Self> {
        // The value of a port that does not exist.
        if read(LEAVING) == u32::MAX {
            return None;
        }
        let mut ports = [Occupant::default(); MAX_PORTS];
        for (number, port) in ports.iter_mut().enumerate() {
            port.answers = buses.port_was_occupied(number);
        }
        Some(AcpiHotplug { events: events?, again: false, ports })
    }

    /// Returns the changes since the last call, and devices that must still be removed. Costs one
    /// read of a port if there are none.
    pub(crate) fn changes(&mut self) -> impl Iterator<Item = Change> + use<> {
        let mut events = Port::<u8>::new(self.events);
        // SAFETY: reading has no effect.
        let happened = unsafe { events.read() } & EVENT != 0;
        if happened {
            // SAFETY: this clears the event, which nothing else handles.
            unsafe { events.write(EVENT) }
        }
        let buses = if happened || self.again { BUSES } else { 0 };
        self.again = false;
        (0..buses).map(|bus| {
            write(SELECT_BUS, bus);
            Change { bus, appeared: read(APPEARED) != 0, leaving: read(LEAVING) != 0 }
        })
    }

    /// Returns the ports with a device that did not answer before. If there is only one such port,
    /// records its bus number.
    pub(crate) fn appeared(&mut self, bus: u32, buses: &Buses) -> [bool; MAX_PORTS] {
        let mut new = [false; MAX_PORTS];
        for (number, (port, new)) in self.ports.iter_mut().zip(&mut new).enumerate() {
            *new = !port.answers && buses.port_answers(number);
            port.answers |= *new;
        }
        if new.iter().filter(|&&new| new).count() == 1 {
            for (port, _) in self.ports.iter_mut().zip(new).filter(|(_, new)| *new) {
                port.bus = Some(bus);
            }
        }
        new
    }

    /// Returns the port of this bus number, if it is known.
    pub(crate) fn port(&self, bus: u32) -> Option<usize> {
        self.ports.iter().position(|port| port.bus == Some(bus))
    }

    /// Makes the next call of [`changes`](Self::changes) report removals again.
    pub(crate) fn try_again(&mut self) {
        self.again = true;
    }

    /// Ejects the device of a port, which must not be in use any more.
    pub(crate) fn eject(&mut self, port: usize) {
        let Occupant { answers, bus } = &mut self.ports[port];
        if let Some(bus) = *bus {
            write(SELECT_BUS, bus);
            // Slot 0 is the only slot of a port.
            write(EJECT, 1);
            *answers = false;
        }
    }
}

fn read(port: u16) -> u32 {
    // SAFETY: the register belongs to QEMU's hot-plug, or does not exist. Reading has no effect, or
    // clears state that nothing else uses.
    unsafe { Port::new(port).read() }
}

fn write(port: u16, value: u32) {
    // SAFETY: the registers were found.
    unsafe { Port::new(port).write(value) }
}
