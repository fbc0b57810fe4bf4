//! A virtio-mem device on PCI, started and stopped.

use super::hal::KernelHal;
use super::memory::{FRAMES, virt};
use super::pci::Buses;
use core::fmt;
use core::ptr::NonNull;
use hotmem::{AllocError, Bytes, PfnRange, Want};
use hotmem_guest::to_usize;
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::mem::{Device, InitError};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{DeviceFunction, DeviceFunctionInfo};
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError, virtio_device_type};

/// A virtio-mem device on PCI.
pub(crate) type PciDevice = Device<PciTransport>;

/// Why the device cannot be used.
pub(crate) enum DeviceError {
    /// It is no valid virtio device.
    Transport(VirtioPciError),
    /// There is no memory for its queue.
    Queue(AllocError),
    /// It cannot be started.
    Init(InitError),
}

/// Whether this is one.
pub(crate) fn is_virtio_mem(info: &DeviceFunctionInfo) -> bool {
    virtio_device_type(info) == Some(DeviceType::Memory)
}

/// Starts the device whose registers are mapped. Returns the frames of its queue as well.
pub(crate) fn start(
    buses: &mut Buses,
    function: DeviceFunction,
) -> Result<(PciDevice, PfnRange), DeviceError> {
    let transport = PciTransport::new::<KernelHal, _>(&mut buses.root, function);
    let transport = transport.map_err(DeviceError::Transport)?;
    let bytes = Bytes(PciDevice::MEMORY_SIZE as u64);
    let frames = FRAMES.alloc(Want::bytes(bytes)).map_err(DeviceError::Queue)?;
    let phys_addr = frames.start().phys_addr();
    let pointer = NonNull::new(virt(phys_addr)).unwrap_or(NonNull::dangling());
    // SAFETY: the frames are allocated and mapped, and freed only after the device has been reset;
    // there is no IOMMU between.
    let memory = unsafe { DmaMemory::new(pointer, phys_addr, to_usize(frames.bytes().0)) };
    Ok((Device::new(transport, memory).map_err(DeviceError::Init)?, frames))
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Transport(error) => error.fmt(f),
            DeviceError::Queue(error) => error.fmt(f),
            DeviceError::Init(error) => error.fmt(f),
        }
    }
}
