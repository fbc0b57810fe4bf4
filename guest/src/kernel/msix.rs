//! Enables MSI-X, with which a device interrupts by writing a message to memory. (PCI
//! Local Bus Specification 3.0, 6.8.2)

use super::pci::Buses;
use crate::arch::{Message, MessageTarget, mmio};
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// The capability's identifier.
const ID: u8 = 0x11;
const TABLE: u8 = 4;
const ENABLE: u32 = 1 << 31;
const MASK_ALL: u32 = 1 << 30;
const ENTRY_BYTES: u64 = 16;

/// Makes vector 0 of the PCI function interrupt `target` by `message`. The function's other vectors
/// stay masked. The function's BARs must be mapped. Returns whether the function supports MSI-X.
pub(super) fn enable(
    buses: &mut Buses,
    function: DeviceFunction,
    message: Message,
    target: MessageTarget,
) -> bool {
    let mut capabilities = buses.root.capabilities(function);
    let Some(capability) = capabilities.find(|found| found.id == ID) else { return false };
    let Some(register) = capability.offset.checked_add(TABLE) else { return false };
    // The lowest three bits are the BAR's number; the others are the offset.
    let table = buses.config.read_word(function, register);
    let bar = u8::try_from(table & 7).unwrap_or_default();
    let Some(entry) = buses.registers(function, bar, table & !7, ENTRY_BYTES) else {
        return false;
    };
    let entry = entry.as_ptr().expose_provenance();
    let Some((address, data)) = target.address_and_data(requester(function), message) else {
        return false;
    };
    let low = u32::try_from(address & u64::from(u32::MAX)).unwrap_or_default();
    let high = u32::try_from(address >> 32).unwrap_or_default();
    for (index, word) in [low, high, data, 0].into_iter().enumerate() {
        // SAFETY: the entry belongs to this function and lies in a mapped BAR. The entry's last
        // word unmasks the entry. All other entries are masked since the function's reset.
        unsafe { mmio::write_u32(entry + 4 * index, word) }
    }
    let control = buses.config.read_word(function, capability.offset);
    buses.config.write_word(function, capability.offset, control & !MASK_ALL | ENABLE);
    true
}

/// Returns the number by which the function's messages are known: its bus, number and function.
fn requester(function: DeviceFunction) -> u16 {
    let DeviceFunction { bus, device, function } = function;
    u16::from_be_bytes([bus, device << 3 | function])
}
