//! Takes and enables ACPI's general-purpose events, each of which is a bit of two registers.

use crate::arch::IoPort;
use acpi::address::GenericAddress;
use acpi::fadt::Fadt;

/// The registers of general-purpose events. An event is a bit.
#[derive(Clone, Copy)]
pub(crate) struct GeneralEvents {
    status_port: IoPort,
    enable_port: IoPort,
    /// The IRQ that enabled events raise.
    pub(crate) irq: u8,
}

impl GeneralEvents {
    /// Returns the events of a machine with this table, or `None` if they are not at I/O ports.
    pub(super) fn of_fadt(fadt: &Fadt) -> Option<Self> {
        let block = fadt.gpe0_block().ok()??;
        // The first half of the block is the status of events, the second enables them.
        let enable_offset = u16::from(block.bit_width) / 16;
        let status_port = port_of(block)?;
        let enable_port = status_port.checked_add(enable_offset)?;
        let irq = u8::try_from(fadt.sci_interrupt).unwrap_or(u8::MAX);
        Some(GeneralEvents { status_port, enable_port, irq })
    }

    /// Clears these events. Returns whether one of them had happened. If not, the call reads only one
    /// I/O port.
    pub(crate) fn take(self, events: u8) -> bool {
        let status = self.status_port;
        // SAFETY: the FADT names the port. Reading it has no effect.
        let happened = unsafe { status.read_u8() } & events;
        if happened != 0 {
            // SAFETY: the write clears only these events, which the caller handles.
            unsafe { status.write_u8(happened) }
        }
        happened != 0
    }

    /// Lets these events raise the interrupt.
    pub(crate) fn enable(self, events: u8) {
        let enable = self.enable_port;
        // SAFETY: the FADT names the port, and the caller handles the interrupts.
        unsafe {
            let enabled = enable.read_u8();
            enable.write_u8(enabled | events);
        }
    }
}

/// Returns the first port of a block of registers, or `None` if they are not I/O ports.
pub(super) fn port_of(block: GenericAddress) -> Option<IoPort> {
    let is_port = block.address_space == acpi::address::AddressSpace::SystemIo;
    u16::try_from(block.address).ok().filter(|&port| is_port && port != 0).and_then(IoPort::new)
}
