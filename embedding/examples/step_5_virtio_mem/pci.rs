//! Finds a virtio device on bus 0 of PCI, and maps its registers.

use crate::mapping::KernelMapping;
use core::ptr::NonNull;
use hotmem::{AllocRequest, Bytes, Hotplug, OneCpu, PfnRange};
use hotmem_embedding::{ConfigurationSpace, PrintedError, direct_map};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{Command, DeviceFunction, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// Finds the first virtio device of this kind on bus 0, maps its registers, and returns its
/// transport.
pub fn find(
    kind: DeviceType,
    hotplug: &mut Hotplug<'static, OneCpu, KernelMapping>,
) -> Result<PciTransport, PrintedError> {
    let mut root = PciRoot::new(ConfigurationSpace);
    let is_of_kind = |(_, info): &(DeviceFunction, _)| virtio_device_type(info) == Some(kind);
    let (function, _) = root.enumerate_bus(0).find(is_of_kind).ok_or("no such device on bus 0")?;
    let bars = root.bars(function).map_err(|_| "a BAR is invalid")?;
    for (start, size) in bars.iter().flatten().filter_map(|bar| bar.memory_address_size()) {
        let range = PfnRange::from_bytes(start, Bytes(size.next_multiple_of(4096)))?;
        let frames = hotplug.frames();
        let take_frame = || Some(frames.alloc(AllocRequest::frames(1)).ok()?.into_raw().start());
        // SAFETY: this does not replace the mapping, and maps no memory of the engine.
        unsafe { hotplug.mapping_mut() }.map_registers(range, take_frame)?;
    }
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER);
    Ok(PciTransport::new::<PhysicalHal, _>(&mut root, function)?)
}

/// The HAL for devices that use physical addresses, because the machine has no IOMMU. The HAL
/// allocates no memory, because the driver provides the memory of its queue.
enum PhysicalHal {}

// SAFETY: `find` has mapped the registers, so `mmio_phys_to_virt` returns valid addresses. The
// transport calls no other function of the HAL.
unsafe impl Hal for PhysicalHal {
    fn dma_alloc(_: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // Address 0 means that no memory is available.
        (0, NonNull::dangling())
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        -1
    }

    unsafe fn mmio_phys_to_virt(phys_addr: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(direct_map(phys_addr)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        0
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
