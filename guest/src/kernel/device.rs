//! Devices, found and started.

use super::balloon::Balloon;
use super::entropy::Entropy;
use super::memory::{alloc_frames, virt};
use super::transport::Wired;
use core::fmt;
use core::ptr::NonNull;
use hotmem::report::ReporterError;
use hotmem::{AllocError, AllocRequest, Bytes, PfnRange};
use hotmem_guest::to_usize;
use hotmem_virtio::balloon;
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::mem::{Device, InitError};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::DeviceFunctionInfo;
use virtio_drivers::transport::pci::virtio_device_type;

/// A virtio-mem device.
pub(crate) type MemDevice = Device<Wired>;

/// The reason why a device cannot be used.
pub(crate) enum DeviceError {
    /// There is no memory for its queue.
    Queue(AllocError),
    /// It cannot be started.
    Init(InitError),
    /// A device of another kind does not do as its drivers must be able to expect.
    Entropy(&'static str),
    /// The same of a balloon.
    Balloon(balloon::InitError),
    /// Nobody can report free memory to it.
    Reporter(ReporterError),
}

/// Returns whether the function is a virtio-mem device.
pub(crate) fn is_virtio_mem(info: &DeviceFunctionInfo) -> bool {
    virtio_device_type(info) == Some(DeviceType::Memory)
}

/// Returns whether it is a device that the kernel drives.
pub(crate) fn is_driven(info: &DeviceFunctionInfo) -> bool {
    let others = [Entropy::DEVICE_TYPE, Balloon::DEVICE_TYPE];
    is_virtio_mem(info) || virtio_device_type(info).is_some_and(|kind| others.contains(&kind))
}

/// Starts a virtio-mem device. Returns the frames of its queue as well.
pub(crate) fn start(transport: Wired) -> Result<(MemDevice, PfnRange), DeviceError> {
    let (memory, frames) = queue_memory(MemDevice::MEMORY_SIZE)?;
    Ok((Device::new(transport, memory).map_err(DeviceError::Init)?, frames))
}

/// Memory to share with a device; its frames may be freed after the device has been reset.
pub(crate) fn queue_memory(bytes: usize) -> Result<(DmaMemory, PfnRange), DeviceError> {
    let frames =
        alloc_frames(AllocRequest::bytes(Bytes(bytes as u64))).map_err(DeviceError::Queue)?;
    let phys_addr = frames.start().phys_addr();
    let pointer = NonNull::new(virt(phys_addr)).unwrap_or(NonNull::dangling());
    // SAFETY: the frames are allocated and mapped, and freed only after the device has been reset;
    // there is no IOMMU between.
    let memory = unsafe { DmaMemory::new(pointer, phys_addr, to_usize(frames.bytes().0)) };
    Ok((memory, frames))
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Queue(error) => error.fmt(f),
            DeviceError::Init(error) => error.fmt(f),
            DeviceError::Entropy(why) => f.write_str(why),
            DeviceError::Balloon(error) => error.fmt(f),
            DeviceError::Reporter(error) => error.fmt(f),
        }
    }
}
