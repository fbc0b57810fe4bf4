//! PCI hot-plug by ACPI, as QEMU's PCs have it unless they are told to leave it to PCI Express.
//!
//! QEMU's AML handles general-purpose event 1 by these registers (QEMU,
//! docs/specs/acpi_pci_hotplug.rst). There is no interpreter here: they are read directly, and
//! which bus a number of theirs means is learnt when a device comes.

use super::pci::{Buses, MAX_PORTS};
use x86_64::instructions::port::Port;

/// Where machines with the ICH9 have them.
const BASE: u16 = 0xcc0;
/// Slots of the selected bus into which a device came, a bit each. Some may have come long ago.
const CAME: u16 = BASE;
/// Slots whose device is to leave.
const LEAVING: u16 = BASE + 4;
/// Takes the device out of a slot.
const EJECT: u16 = BASE + 8;
const SELECT_BUS: u16 = BASE + 16;

/// Buses that are asked about: QEMU numbers those with hot-plug from 0, and most are behind ports.
const BUSES: u32 = 32;
/// General-purpose event 1.
const EVENT: u8 = 1 << 1;

/// The registers, and what is known of the ports.
pub(crate) struct AcpiHotplug {
    /// General-purpose events that have happened: they are cleared by writing ones.
    events: u16,
    /// A device that is to leave has not left.
    again: bool,
    ports: [Occupant; MAX_PORTS],
}

#[derive(Clone, Copy, Default)]
struct Occupant {
    answers: bool,
    /// The number that selects the port's bus, once it is known.
    bus: Option<u32>,
}

/// What happened on a bus.
pub(crate) struct Change {
    pub(crate) bus: u32,
    pub(crate) came: bool,
    pub(crate) leaving: bool,
}

impl AcpiHotplug {
    /// Finds the registers: `events` is the port of general-purpose events, if there are such.
    pub(crate) fn find(events: Option<u16>, buses: &Buses) -> Option<Self> {
        // What a port that does not exist reads as.
        if read(LEAVING) == u32::MAX {
            return None;
        }
        let mut ports = [Occupant::default(); MAX_PORTS];
        for (number, port) in ports.iter_mut().enumerate() {
            port.answers = buses.port_was_occupied(number);
        }
        Some(AcpiHotplug { events: events?, again: false, ports })
    }

    /// Returns what happened since the last call, and what is yet to leave. Cost: one read of a
    /// port if that is nothing.
    pub(crate) fn changes(&mut self) -> impl Iterator<Item = Change> + use<> {
        let mut events = Port::<u8>::new(self.events);
        // SAFETY: reading has no effect.
        let happened = unsafe { events.read() } & EVENT != 0;
        if happened {
            // SAFETY: this clears the event, which nobody else handles.
            unsafe { events.write(EVENT) }
        }
        let buses = if happened || self.again { BUSES } else { 0 };
        self.again = false;
        (0..buses).map(|bus| {
            write(SELECT_BUS, bus);
            Change { bus, came: read(CAME) != 0, leaving: read(LEAVING) != 0 }
        })
    }

    /// Returns the ports behind which something answers that did not before. If it is one alone,
    /// this is its bus from now on.
    pub(crate) fn came(&mut self, bus: u32, buses: &Buses) -> [bool; MAX_PORTS] {
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

    /// Returns the port that leads to this bus, if that is known.
    pub(crate) fn port(&self, bus: u32) -> Option<usize> {
        self.ports.iter().position(|port| port.bus == Some(bus))
    }

    /// Asks about what is to leave once more.
    pub(crate) fn try_again(&mut self) {
        self.again = true;
    }

    /// Lets what is behind a port go. Nobody may use it any more.
    pub(crate) fn eject(&mut self, port: usize) {
        let Occupant { answers, bus } = &mut self.ports[port];
        if let Some(bus) = *bus {
            write(SELECT_BUS, bus);
            // The only slot behind a port.
            write(EJECT, 1);
            *answers = false;
        }
    }
}

fn read(port: u16) -> u32 {
    // SAFETY: the register is QEMU's, or nobody's; reading has no effect, or clears what nobody
    // else waits for.
    unsafe { Port::new(port).read() }
}

fn write(port: u16, value: u32) {
    // SAFETY: the registers were found.
    unsafe { Port::new(port).write(value) }
}
