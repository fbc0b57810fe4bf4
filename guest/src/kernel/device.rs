//! The virtio-mem device: found on PCI, and started.

use super::hal::KernelHal;
use super::memory::{AddressSpace, FRAMES, virt};
use super::pci::{BusError, Buses};
use core::fmt;
use core::ptr::NonNull;
use hotmem::{AllocError, Bytes, Want};
use hotmem_guest::event::Event;
use hotmem_guest::to_usize;
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::mem::{Device, InitError};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError, virtio_device_type};

/// A virtio-mem device on PCI.
pub(crate) type PciDevice = Device<PciTransport>;

/// Why the device cannot be used.
pub(crate) enum DeviceError {
    /// It cannot be reached.
    Bus(BusError),
    /// It is no valid virtio device.
    Transport(VirtioPciError),
    /// There is no memory for its queue.
    Queue(AllocError),
    /// It cannot be started.
    Init(InitError),
}

/// The first virtio-mem device, with its line of the 8259s.
pub(crate) fn find(
    buses: &mut Buses,
    space: &mut AddressSpace,
) -> Result<Option<(PciTransport, Option<u8>)>, DeviceError> {
    let is_memory = |info: &_| virtio_device_type(info) == Some(DeviceType::Memory);
    let Some(function) = buses.find(space, is_memory).map_err(DeviceError::Bus)? else {
        return Ok(None);
    };
    let transport = PciTransport::new::<KernelHal, _>(&mut buses.root, function);
    Ok(Some((transport.map_err(DeviceError::Transport)?, buses.irq(function))))
}

/// Starts it.
pub(crate) fn start(transport: PciTransport) -> Result<PciDevice, DeviceError> {
    let bytes = Bytes(PciDevice::MEMORY_SIZE as u64);
    let frames = FRAMES.alloc(Want::bytes(bytes)).map_err(DeviceError::Queue)?;
    let phys_addr = frames.start().phys_addr();
    let pointer = NonNull::new(virt(phys_addr)).unwrap_or(NonNull::dangling());
    // SAFETY: the frames are allocated, mapped, and never freed; there is no IOMMU between.
    let memory = unsafe { DmaMemory::new(pointer, phys_addr, to_usize(frames.bytes().0)) };
    Device::new(transport, memory).map_err(DeviceError::Init)
}

/// What its configuration says.
pub(crate) fn event(device: &PciDevice) -> Event<'static> {
    let config = device.driver().config();
    Event::Device {
        block_size: config.block_size(),
        addr: config.region().start().phys_addr(),
        region_size: config.region().bytes(),
        requested: config.requested(),
        plugged: config.plugged(),
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Bus(error) => error.fmt(f),
            DeviceError::Transport(error) => error.fmt(f),
            DeviceError::Queue(error) => error.fmt(f),
            DeviceError::Init(error) => error.fmt(f),
        }
    }
}
