//! Recognises and starts devices.

use super::balloon::Balloon;
use super::device_error::DeviceError;
use super::entropy::Entropy;
use super::queue_memory::queue_memory;
use super::transport::DeviceTransport;
use hotmem::PfnRange;
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

/// Starts a virtio-mem device. Returns the frames of its queue as well.
pub(crate) fn start(transport: DeviceTransport) -> Result<(MemDevice, PfnRange), DeviceError> {
    let (memory, frames) = queue_memory(MemDevice::MEMORY_SIZE)?;
    Ok((Device::new(transport, memory).map_err(DeviceError::Init)?, frames))
}
