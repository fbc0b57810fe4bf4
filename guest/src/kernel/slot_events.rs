//! Takes the events by which ACPI tells of changes of memory slots.

use super::general_events::GeneralEvents;
use super::memory::{AddressSpace, MapError};
use super::slot_region::{EVENT_BYTES, EventDevice, SlotPlace};
use crate::arch::{interrupts, mmio};
use hotmem_directmap::Caching;

/// The bit of general-purpose event 3.
const GENERAL_EVENT: u8 = 1 << 3;
/// The bit of the event of a generic event device. The others, of which one is the power button, are
/// ignored.
const DEVICE_EVENT: u32 = 1;

/// What tells of changes.
pub(super) enum SlotEvents {
    /// General-purpose event 3.
    General(GeneralEvents),
    /// The register of a generic event device, at this address.
    Device(usize),
}

impl SlotEvents {
    /// Enables the events and their interrupt. If that cannot be enabled, the kernel still sees events
    /// when it polls. Returns `None` if the machine has no such events.
    pub(super) fn open(
        place: SlotPlace,
        general: Option<GeneralEvents>,
        space: &mut AddressSpace,
    ) -> Result<Option<Self>, MapError> {
        match place {
            SlotPlace::Ports(_) => {
                if let Some(events) = general {
                    events.enable(GENERAL_EVENT);
                    interrupts::enable_own_line(events.irq.into());
                }
                Ok(general.map(SlotEvents::General))
            }
            SlotPlace::Memory(_, EventDevice { register, line }) => {
                let mapped = space.map_bytes(register, EVENT_BYTES, Caching::Uncached)?;
                interrupts::enable_pulsed_line(line);
                Ok(Some(SlotEvents::Device(mapped.as_ptr().expose_provenance())))
            }
        }
    }

    /// Clears the event, the source of the interrupt. Returns whether it has happened.
    pub(super) fn take(&self) -> bool {
        match *self {
            SlotEvents::General(events) => events.take(GENERAL_EVENT),
            SlotEvents::Device(register) => {
                // SAFETY: the DSDT names the register, and only this module reads it, which clears it.
                (unsafe { mmio::read_u32(register) }) & DEVICE_EVENT != 0
            }
        }
    }
}
