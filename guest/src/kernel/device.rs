//! Recognises devices.

use super::balloon::Balloon;
use super::entropy::Entropy;
use super::transport::DeviceTransport;
use hotmem_virtio::mem::Device;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::DeviceFunctionInfo;
use virtio_drivers::transport::pci::virtio_device_type;

/// A virtio-mem device.
pub(crate) type MemDevice = Device<DeviceTransport>;

/// Returns whether the function is a virtio-mem device.
pub(crate) fn is_virtio_mem(info: &DeviceFunctionInfo) -> bool {
    virtio_device_type(info) == Some(DeviceType::Memory)
}

/// Returns whether the function is a virtio device that the kernel drives.
pub(crate) fn is_driven(info: &DeviceFunctionInfo) -> bool {
    let others = [Entropy::DEVICE_TYPE, Balloon::DEVICE_TYPE];
    is_virtio_mem(info) || virtio_device_type(info).is_some_and(|kind| others.contains(&kind))
}
