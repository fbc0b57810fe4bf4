//! Implements a transport of the virtio-drivers crate by the registers of a virtio device on PCI.

use super::capabilities::{Capabilities, RegisterLocation};
use super::error::PciError;
use super::registers::{Registers, Width};
use core::array;
use core::ops::Range;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A device and its registers. Dropping it resets the device.
#[derive(Debug)]
pub struct PciTransport<R: Registers> {
    kind: DeviceType,
    locations: Capabilities,
    bars: [Option<R>; 6],
    function: DeviceFunction,
    interrupt_line: Option<u8>,
    interrupt_pin: Option<u8>,
    /// The entry of the MSI-X table for all events, if any.
    vector: Option<u16>,
    /// Whether the device has not mapped an event to the entry.
    refuses_vector: bool,
}

/// The offsets of the registers of `virtio_pci_common_cfg` (4.1.4.3).
const DEVICE_FEATURE_SELECT: u32 = 0;
const DEVICE_FEATURE: u32 = 4;
const DRIVER_FEATURE_SELECT: u32 = 8;
const DRIVER_FEATURE: u32 = 12;
const CONFIG_VECTOR: u32 = 16;
const DEVICE_STATUS: u32 = 20;
const CONFIG_GENERATION: u32 = 21;
const QUEUE_SELECT: u32 = 22;
const QUEUE_SIZE: u32 = 24;
const QUEUE_VECTOR: u32 = 26;
const QUEUE_ENABLE: u32 = 28;
const QUEUE_NOTIFY_OFF: u32 = 30;
const QUEUE_DESC: u32 = 32;
const QUEUE_DRIVER: u32 = 40;
const QUEUE_DEVICE: u32 = 48;

const FIRST_BAR: u8 = 0x10;
const LAST_BAR: u8 = 5;
/// The register with the numbers of the interrupt line and of the interrupt pin. The pin is 0 if
/// the device has no interrupt line.
const INTERRUPT: u8 = 0x3c;
const UNKNOWN_LINE: u8 = 0xff;
/// The register's value after a reset. Input 0 of a PC is the timer's, so no firmware assigns it.
const UNASSIGNED_LINE: u8 = 0;
/// INTD.
const LAST_PIN: u8 = 4;
const IO_SPACE: u32 = 1;
const TYPE_MASK: u32 = 3 << 1;
const TYPE_64_BIT: u32 = 2 << 1;
const FLAGS_MASK: u32 = 0xf;

impl<R: Registers> PciTransport<R> {
    pub(super) fn new<C: ConfigurationAccess>(
        kind: DeviceType,
        locations: Capabilities,
        config: &C,
        function: DeviceFunction,
        mut map: impl FnMut(Range<u64>) -> Option<R>,
    ) -> core::result::Result<PciTransport<R>, PciError> {
        let mut bars = array::from_fn(|_| None);
        for (bar, registers) in (0..).zip(&mut bars) {
            let bytes = locations.mapped_bytes(bar);
            if bytes > 0 {
                let start = bar_address(config, function, bar).ok_or(PciError::Bar(bar))?;
                let end = start.checked_add(bytes).ok_or(PciError::Bar(bar))?;
                *registers = Some(map(start..end).ok_or(PciError::Unmapped(start, end))?);
            }
        }
        let [line, pin, ..] = config.read_word(function, INTERRUPT).to_le_bytes();
        let interrupt_pin = Some(pin).filter(|pin| (1..=LAST_PIN).contains(pin));
        let is_assigned = line != UNKNOWN_LINE && line != UNASSIGNED_LINE;
        let interrupt_line = interrupt_pin.and(is_assigned.then_some(line));
        Ok(PciTransport {
            kind,
            locations,
            bars,
            function,
            interrupt_line,
            interrupt_pin,
            vector: None,
            refuses_vector: false,
        })
    }

    /// Returns the number of the device's interrupt line, as the firmware has assigned it, or
    /// `None` if the device has no line or the firmware has assigned none. On a PC this is the number
    /// of an input of the interrupt controllers. On machines with a device tree nobody assigns the
    /// number; there, [`interrupt_pin`](Self::interrupt_pin) selects the line. The device uses the
    /// line unless the kernel enables MSI-X.
    #[must_use]
    pub const fn interrupt_line(&self) -> Option<u8> {
        self.interrupt_line
    }

    /// Returns the device's interrupt pin: 1 to 4 for INTA to INTD, or `None` if the device has none.
    /// A device tree maps the pin and the [function](Self::function) to an input of an interrupt
    /// controller (`interrupt-map`).
    #[must_use]
    pub const fn interrupt_pin(&self) -> Option<u8> {
        self.interrupt_pin
    }

    /// Returns where the device is on PCI.
    #[must_use]
    pub const fn function(&self) -> DeviceFunction {
        self.function
    }

    /// Maps all events of the device to this entry of its MSI-X table, when the device is started. The
    /// kernel must have set up the entry and enabled MSI-X. Without this call no event is mapped,
    /// because a reset unmaps all (4.1.5.1.2.1): if MSI-X is enabled, the device does not interrupt.
    pub const fn interrupt_by(&mut self, vector: u16) {
        (self.vector, self.refuses_vector) = (Some(vector), false);
    }

    /// Returns whether the device was started, and has not mapped all its events to the entry of
    /// [`interrupt_by`](Self::interrupt_by), which a device may do for want of resources. The kernel
    /// then polls the device, or disables MSI-X.
    #[must_use]
    pub const fn refuses_vector(&self) -> bool {
        self.refuses_vector
    }

    /// Maps changes of the configuration and the selected queue to the entry of the MSI-X table, and
    /// reads back whether the device has done so (4.1.5.1.2.2).
    fn map_events(&mut self, vector: u16) {
        for register in [CONFIG_VECTOR, QUEUE_VECTOR] {
            self.write_common(register, Width::TwoBytes, vector.into());
            self.refuses_vector |= self.read_common(register, Width::TwoBytes) != vector.into();
        }
    }

    /// Reads the register `offset` bytes after the start of `location`. If the BAR is not mapped,
    /// returns all ones, which a read of a missing device returns too.
    fn read(&self, location: RegisterLocation, offset: u32, width: Width) -> u32 {
        let registers = self.bars.get(usize::from(location.bar)).and_then(Option::as_ref);
        let bar_offset = location.offset as usize + offset as usize;
        registers.map_or(u32::MAX, |registers| registers.read(bar_offset, width))
    }

    pub(super) fn write(
        &mut self,
        location: RegisterLocation,
        offset: u32,
        width: Width,
        value: u32,
    ) {
        let registers = self.bars.get_mut(usize::from(location.bar)).and_then(Option::as_mut);
        if let Some(registers) = registers {
            registers.write(location.offset as usize + offset as usize, width, value);
        }
    }

    /// Returns whether the registers of a location are mapped.
    pub(super) fn is_mapped(&self, location: RegisterLocation) -> bool {
        location.end() <= self.locations.mapped_bytes(location.bar)
    }

    fn read_common(&self, register: u32, width: Width) -> u32 {
        self.read(self.locations.common_config, register, width)
    }

    fn write_common(&mut self, register: u32, width: Width, value: u32) {
        self.write(self.locations.common_config, register, width, value);
    }

    #[allow(clippy::cast_possible_truncation, reason = "written in two halves (4.1.3.1)")]
    fn write_address(&mut self, register: u32, address: PhysAddr) {
        self.write_common(register, Width::FourBytes, address as u32);
        self.write_common(register + 4, Width::FourBytes, (address >> 32) as u32);
    }

    fn select(&mut self, queue: u16) {
        self.write_common(QUEUE_SELECT, Width::TwoBytes, queue.into());
    }

    /// Checks that `bytes` bytes at `offset` lie in the device's own configuration. Returns the
    /// location of the configuration and the offset.
    fn check_offset(&self, offset: usize, bytes: usize) -> Result<(RegisterLocation, u32)> {
        let device = self.locations.device.ok_or(Error::ConfigSpaceMissing)?;
        let end = offset.checked_add(bytes).ok_or(Error::ConfigSpaceTooSmall)?;
        if end > device.len as usize {
            return Err(Error::ConfigSpaceTooSmall);
        }
        Ok((device, u32::try_from(offset).map_err(|_| Error::ConfigSpaceTooSmall)?))
    }
}

/// Returns the width by which `bytes` bytes at `offset` are accessed: the largest width of which
/// both are multiples (4.1.3.1).
fn width(offset: usize, bytes: usize) -> Width {
    match offset | bytes {
        all if all.is_multiple_of(4) => Width::FourBytes,
        all if all.is_multiple_of(2) => Width::TwoBytes,
        _ => Width::OneByte,
    }
}

/// Returns the address in a BAR, or `None` if the BAR is not a memory BAR or has no address.
pub(super) fn bar_address<C: ConfigurationAccess>(
    config: &C,
    function: DeviceFunction,
    bar: u8,
) -> Option<u64> {
    let read = |bar: u8| config.read_word(function, FIRST_BAR + 4 * bar);
    let is_64_bit = |bar: u8| read(bar) & (IO_SPACE | TYPE_MASK) == TYPE_64_BIT;
    // A 64-bit BAR occupies two registers, so skip its second register.
    let mut starts =
        core::iter::successors(Some(0), |&bar| Some(bar + 1 + u8::from(is_64_bit(bar))));
    let is_first_register = starts.find(|&start| start >= bar) == Some(bar);
    let high = match is_64_bit(bar) {
        true if bar < LAST_BAR => read(bar + 1),
        true => return None,
        false => 0,
    };
    let address = u64::from(high) << 32 | u64::from(read(bar) & !FLAGS_MASK);
    (is_first_register && read(bar) & IO_SPACE == 0 && address != 0).then_some(address)
}

impl<R: Registers> Transport for PciTransport<R> {
    fn device_type(&self) -> DeviceType {
        self.kind
    }

    fn read_device_features(&mut self) -> u64 {
        let [low, high] = [0, 1].map(|half| {
            self.write_common(DEVICE_FEATURE_SELECT, Width::FourBytes, half);
            u64::from(self.read_common(DEVICE_FEATURE, Width::FourBytes))
        });
        high << 32 | low
    }

    #[allow(clippy::cast_possible_truncation, reason = "written in two halves")]
    fn write_driver_features(&mut self, features: u64) {
        for (half, bits) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.write_common(DRIVER_FEATURE_SELECT, Width::FourBytes, half);
            self.write_common(DRIVER_FEATURE, Width::FourBytes, bits);
        }
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.select(queue);
        self.read_common(QUEUE_SIZE, Width::TwoBytes)
    }

    fn notify(&mut self, queue: u16) {
        self.select(queue);
        let number = self.read_common(QUEUE_NOTIFY_OFF, Width::TwoBytes);
        let offset = number.checked_mul(self.locations.notify_step);
        // Ignore a notification register beyond the range that the device describes.
        let last = self.locations.notify.len - 2;
        if let Some(offset) = offset.filter(|&offset| offset <= last && offset.is_multiple_of(2)) {
            self.write(self.locations.notify, offset, Width::TwoBytes, queue.into());
        }
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_truncate(self.read_common(DEVICE_STATUS, Width::OneByte))
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.write_common(DEVICE_STATUS, Width::OneByte, status.bits());
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        self.select(queue);
        self.write_common(QUEUE_SIZE, Width::TwoBytes, size);
        self.write_address(QUEUE_DESC, descriptors);
        self.write_address(QUEUE_DRIVER, driver_area);
        self.write_address(QUEUE_DEVICE, device_area);
        if let Some(vector) = self.vector {
            self.map_events(vector);
        }
        self.write_common(QUEUE_ENABLE, Width::TwoBytes, 1);
    }

    fn queue_unset(&mut self, _: u16) {
        // Do nothing, because only a reset ends the device's use of a queue.
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.select(queue);
        self.read_common(QUEUE_ENABLE, Width::TwoBytes) == 1
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        // A read of this register also clears it.
        InterruptStatus::from_bits_truncate(self.read(self.locations.isr, 0, Width::OneByte))
    }

    fn read_config_generation(&self) -> u32 {
        self.read_common(CONFIG_GENERATION, Width::OneByte)
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        let (device, start) = self.check_offset(offset, bytes.len())?;
        let width = width(offset, bytes.len());
        for (part, offset) in bytes.chunks_mut(width.bytes()).zip((start..).step_by(width.bytes()))
        {
            let word = self.read(device, offset, width).to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
        Ok(value)
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> Result<()> {
        let bytes = value.as_bytes();
        let (device, start) = self.check_offset(offset, bytes.len())?;
        let width = width(offset, bytes.len());
        for (part, offset) in bytes.chunks(width.bytes()).zip((start..).step_by(width.bytes())) {
            let mut word = [0; 4];
            word[..part.len()].copy_from_slice(part);
            self.write(device, offset, width, u32::from_le_bytes(word));
        }
        Ok(())
    }
}

impl<R: Registers> Drop for PciTransport<R> {
    fn drop(&mut self) {
        crate::handshake::reset(self);
    }
}
