//! The virtio-mem device: found on PCI, driven through virtio-drivers' transport.

use super::memory::{AddressSpace, virt};
use super::pci::{BusError, Buses};
use core::fmt;
use core::ptr::NonNull;
use hotmem::Bytes;
use hotmem_guest::event::Event;
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError, virtio_device_type};
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// A virtio-mem device.
pub(crate) struct MemoryDevice {
    transport: PciTransport,
    irq: Option<u8>,
}

/// Why the device cannot be used.
pub(crate) enum DeviceError {
    /// It cannot be reached.
    Bus(BusError),
    /// It is no valid virtio device.
    Virtio(VirtioPciError),
    /// Its configuration cannot be read.
    Config(virtio_drivers::Error),
}

/// The kernel as virtio-drivers sees it.
pub(crate) enum KernelHal {}

impl MemoryDevice {
    /// The first virtio-mem device, if there is one.
    pub(crate) fn find(
        buses: &mut Buses,
        memory: &mut AddressSpace,
    ) -> Result<Option<Self>, DeviceError> {
        let is_memory = |info: &_| virtio_device_type(info) == Some(DeviceType::Memory);
        let Some(function) = buses.find(memory, is_memory).map_err(DeviceError::Bus)? else {
            return Ok(None);
        };
        let transport = PciTransport::new::<KernelHal, _>(&mut buses.root, function)
            .map_err(DeviceError::Virtio)?;
        Ok(Some(MemoryDevice { transport, irq: buses.irq(function) }))
    }

    /// The line of the 8259s that it interrupts by.
    pub(crate) fn irq(&self) -> Option<u8> {
        self.irq
    }

    /// Asks why it interrupted, which ends the interrupt.
    pub(crate) fn acknowledge_interrupt(&mut self) {
        self.transport.ack_interrupt();
    }

    /// What its configuration says.
    pub(crate) fn event(&self) -> Result<Event<'static>, DeviceError> {
        let read = |offset| -> Result<u64, virtio_drivers::Error> {
            let [low, high] = self.transport.read_config_space::<[u32; 2]>(offset)?;
            Ok(u64::from(low) | u64::from(high) << 32)
        };
        let device = self.transport.read_consistent(|| {
            Ok(Event::Device {
                block_size: Bytes(read(0)?),
                addr: read(16)?,
                region_size: Bytes(read(24)?),
                plugged: Bytes(read(40)?),
                requested: Bytes(read(48)?),
            })
        });
        device.map_err(DeviceError::Config)
    }
}

// SAFETY: no DMA memory is handed out; registers are found where `Buses::find` has mapped them.
unsafe impl Hal for KernelHal {
    fn dma_alloc(_: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // Address 0 is the crate's sign that there is none.
        (0, NonNull::dangling())
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(phys_addr: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(virt(phys_addr)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        0
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Bus(error) => error.fmt(f),
            DeviceError::Virtio(error) => error.fmt(f),
            DeviceError::Config(error) => error.fmt(f),
        }
    }
}
