//! Shows a device on PCI (virtio 1.3, 4.1.4) behind the registers of virtio-mmio (4.2.2), which the points
//! use. Each access of 64 bits is made in halves, as 4.1.3.1 wants.

use super::window::Window;
use crate::kernel::pci::Buses;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction, PCI_CAP_ID_VNDR};
use virtio_drivers::transport::pci::{
    VIRTIO_PCI_CAP_COMMON_CFG, VIRTIO_PCI_CAP_DEVICE_CFG, VIRTIO_PCI_CAP_ISR_CFG,
    VIRTIO_PCI_CAP_NOTIFY_CFG,
};

/// `virtio_pci_common_cfg`.
mod common {
    pub(super) const DEVICE_FEATURE_SELECT: u64 = 0;
    pub(super) const DEVICE_FEATURE: u64 = 4;
    pub(super) const DRIVER_FEATURE_SELECT: u64 = 8;
    pub(super) const DRIVER_FEATURE: u64 = 12;
    pub(super) const DEVICE_STATUS: u64 = 20;
    pub(super) const CONFIG_GENERATION: u64 = 21;
    pub(super) const QUEUE_SELECT: u64 = 22;
    pub(super) const QUEUE_SIZE: u64 = 24;
    pub(super) const QUEUE_ENABLE: u64 = 28;
    pub(super) const QUEUE_NOTIFY_OFF: u64 = 30;
    pub(super) const QUEUE_DESC: u64 = 32;
}

const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// The offset of the configuration of the type of device in virtio-mmio.
pub(super) const CONFIG: u64 = 0x100;

/// The offsets of the fields of a capability.
const BAR: u8 = 4;
const OFFSET: u8 = 8;
const LENGTH: u8 = 12;
const NOTIFY_MULTIPLIER: u8 = 16;

/// The registers of a device on PCI.
pub(crate) struct PciRegisters {
    /// The type of the device.
    id: u32,
    common: Window,
    notify: Window,
    notify_multiplier: u32,
    isr: Window,
    config: Window,
    /// The causes of interrupts that are not acknowledged. Reading the device's register clears it.
    causes: u32,
}

impl PciRegisters {
    /// Finds the registers of a device whose BARs are mapped.
    pub(crate) fn find(buses: &mut Buses, function: DeviceFunction, id: u32) -> Option<Self> {
        Some(PciRegisters {
            id,
            common: window(buses, function, VIRTIO_PCI_CAP_COMMON_CFG)?.0,
            isr: window(buses, function, VIRTIO_PCI_CAP_ISR_CFG)?.0,
            config: window(buses, function, VIRTIO_PCI_CAP_DEVICE_CFG)?.0,
            notify: window(buses, function, VIRTIO_PCI_CAP_NOTIFY_CFG)?.0,
            notify_multiplier: window(buses, function, VIRTIO_PCI_CAP_NOTIFY_CFG)?.1,
            causes: 0,
        })
    }

    pub(super) fn read(&mut self, offset: u64, data: &mut [u8]) {
        if offset >= CONFIG {
            return self.config.copy_to(offset - CONFIG, data);
        }
        let value = self.register(offset).to_le_bytes();
        data.copy_from_slice(&value[..data.len().min(value.len())]);
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        if offset >= CONFIG {
            return self.config.copy_from(offset - CONFIG, data);
        }
        if let Ok(bytes) = data.try_into() {
            self.set_register(offset, u32::from_le_bytes(bytes));
        }
    }

    fn register(&mut self, offset: u64) -> u32 {
        match offset {
            0x00 => MAGIC,
            0x04 => VERSION,
            0x08 => self.id,
            0x10 => self.common.read(common::DEVICE_FEATURE),
            0x34 => self.common.read::<u16>(common::QUEUE_SIZE).into(),
            0x44 => self.common.read::<u16>(common::QUEUE_ENABLE).into(),
            0x60 => {
                self.causes |= u32::from(self.isr.read::<u8>(0));
                self.causes
            }
            0x70 => self.common.read::<u8>(common::DEVICE_STATUS).into(),
            0xfc => self.common.read::<u8>(common::CONFIG_GENERATION).into(),
            _ => 0,
        }
    }

    /// Writes a register. Those of PCI that are narrower get the low bits.
    fn set_register(&mut self, offset: u64, value: u32) {
        let [low, high, ..] = value.to_le_bytes();
        let half = u16::from_le_bytes([low, high]);
        match offset {
            0x14 => self.common.write(common::DEVICE_FEATURE_SELECT, value),
            0x20 => self.common.write(common::DRIVER_FEATURE, value),
            0x24 => self.common.write(common::DRIVER_FEATURE_SELECT, value),
            0x30 => self.common.write(common::QUEUE_SELECT, half),
            0x38 => self.common.write(common::QUEUE_SIZE, half),
            0x44 => self.common.write(common::QUEUE_ENABLE, half),
            0x50 => self.notify(half),
            0x64 => self.causes &= !value,
            0x70 => self.common.write(common::DEVICE_STATUS, low),
            0x80..=0x84 | 0x90..=0x94 | 0xa0..=0xa4 => {
                let area = (offset - 0x80) / 0x10;
                self.common.write(common::QUEUE_DESC + 8 * area + offset % 0x10, value);
            }
            _ => {}
        }
    }

    fn notify(&mut self, queue: u16) {
        self.common.write(common::QUEUE_SELECT, queue);
        let number: u16 = self.common.read(common::QUEUE_NOTIFY_OFF);
        self.notify.write(u64::from(number) * u64::from(self.notify_multiplier), queue);
    }
}

/// Returns the bytes that a capability of this type names, and the word behind its common fields.
fn window(buses: &mut Buses, function: DeviceFunction, kind: u8) -> Option<(Window, u32)> {
    let capability = buses.root.capabilities(function).find(|capability| {
        let [_, found] = capability.private_header.to_le_bytes();
        capability.id == PCI_CAP_ID_VNDR && found == kind
    })?;
    let word =
        |field: u8| Some(buses.config.read_word(function, capability.offset.checked_add(field)?));
    let [bar, ..] = word(BAR)?.to_le_bytes();
    let (offset, len, last) = (word(OFFSET)?, word(LENGTH)?.into(), word(NOTIFY_MULTIPLIER)?);
    let start = buses.registers(function, bar, offset, len)?;
    // SAFETY: the registers lie in a BAR that is mapped and stays mapped, and nothing else uses them.
    Some((unsafe { Window::new(start, len) }, last))
}
