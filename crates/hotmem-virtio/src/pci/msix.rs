//! Sets the messages by which a device interrupts (MSI-X; PCI Local Bus Specification 3.0, 6.8.2).

use super::capabilities::{BAR_COUNT, RegisterLocation, find_capability};
use super::registers::{Registers, Width};
use super::transport::{PciTransport, bar_address};
use crate::barrier::order_writes;
use core::fmt;
use core::ops::Range;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// What a device writes to interrupt, and where. On a PC the message names a CPU and a vector; with
/// a GIC, the address is that of a translation service, and the data is the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The address, as the device sees it.
    pub address: u64,
    /// The data.
    pub data: u32,
}

/// The reason why a message was not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MessageError {
    /// The device does not support MSI-X.
    Unsupported,
    /// The table of the device has only this number of entries.
    Entries(u16),
    /// The table lies in this BAR, which has no address.
    Bar(u8),
    /// The kernel has not mapped the entry, which lies at these addresses.
    Unmapped(u64, u64),
}

/// The identifier of the capability.
const ID: u8 = 0x11;
/// The offset of the field with the place of the table: a BAR in the lowest three bits, and an
/// offset into it.
const TABLE: u8 = 4;
/// The bits of the capability's first word.
const ENABLE: u32 = 1 << 31;
const MASK_ALL: u32 = 1 << 30;
const LAST_ENTRY: u32 = 0x7ff << 16;

const ENTRY_BYTES: u32 = 16;
/// The offsets of the words of an entry.
const ADDRESS_LOW: u32 = 0;
const ADDRESS_HIGH: u32 = 4;
const DATA: u32 = 8;
const CONTROL: u32 = 12;
/// The bit of `CONTROL` that masks the entry.
const MASK: u32 = 1;

impl<R: Registers> PciTransport<R> {
    /// Makes the device interrupt by `message` for entry `entry` of its MSI-X table, and enables
    /// MSI-X. The other entries stay as they are: after a reset of the function, they are masked.
    /// [`interrupt_by`](Self::interrupt_by) maps the device's events to the entry. If the table lies
    /// outside the registers that are mapped already, calls `map` for the addresses of the entry.
    ///
    /// # Errors
    /// [`MessageError`]. Nothing is changed.
    pub fn set_message<C: ConfigurationAccess>(
        &mut self,
        config: &mut C,
        entry: u16,
        message: Message,
        map: impl FnOnce(Range<u64>) -> Option<R>,
    ) -> Result<(), MessageError> {
        let function = self.function();
        let capability = find_capability(config, function, ID).ok_or(MessageError::Unsupported)?;
        let control = config.read_word(function, capability);
        let location = entry_location(config, function, capability, control, entry)?;
        if self.is_mapped(location) {
            write_entry(message, |word, value| {
                self.write(location, word, Width::FourBytes, value);
            });
        } else {
            let bar = MessageError::Bar(location.bar);
            let start = bar_address(config, function, location.bar).ok_or(bar)?;
            let start = start.checked_add(location.offset.into()).ok_or(bar)?;
            let end = start.checked_add(location.len.into()).ok_or(bar)?;
            let mut registers = map(start..end).ok_or(MessageError::Unmapped(start, end))?;
            write_entry(message, |word, value| {
                registers.write(word as usize, Width::FourBytes, value);
            });
        }
        // The table and the configuration space are different memory of the processor, which orders
        // writes to them only by a barrier.
        order_writes();
        config.write_word(function, capability, control & !MASK_ALL | ENABLE);
        Ok(())
    }
}

/// Returns the place of an entry of the table.
fn entry_location<C: ConfigurationAccess>(
    config: &C,
    function: DeviceFunction,
    capability: u8,
    control: u32,
    entry: u16,
) -> Result<RegisterLocation, MessageError> {
    let entries = u16::try_from((control & LAST_ENTRY) >> 16).unwrap_or_default() + 1;
    if entry >= entries {
        return Err(MessageError::Entries(entries));
    }
    let table = config.read_word(function, capability.wrapping_add(TABLE));
    let [low, ..] = table.to_le_bytes();
    let bar = low & 7;
    let offset = (table & !7).checked_add(u32::from(entry) * ENTRY_BYTES);
    let offset = offset.filter(|_| bar < BAR_COUNT).ok_or(MessageError::Bar(bar))?;
    Ok(RegisterLocation { bar, offset, len: ENTRY_BYTES })
}

/// Writes the words of an entry, which is masked meanwhile: a device may use an entry that is not
/// masked at any time.
fn write_entry(message: Message, mut write: impl FnMut(u32, u32)) {
    let [low, high] = [message.address, message.address >> 32]
        .map(|half| u32::try_from(half & u64::from(u32::MAX)).unwrap_or_default());
    write(CONTROL, MASK);
    write(ADDRESS_LOW, low);
    write(ADDRESS_HIGH, high);
    write(DATA, message.data);
    write(CONTROL, 0);
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Unsupported => f.write_str("the device does not support MSI-X"),
            MessageError::Entries(entries) => {
                write!(f, "the MSI-X table of the device has {entries} entries")
            }
            MessageError::Bar(bar) => {
                write!(f, "the MSI-X table lies in BAR {bar}, which has no usable address")
            }
            MessageError::Unmapped(start, end) => {
                write!(f, "the MSI-X entry at {start:#x} to {end:#x} is not mapped")
            }
        }
    }
}

impl core::error::Error for MessageError {}
