//! virtio devices on PCI.

use axalloc::{UsageKind, global_allocator};
use axconfig::devices::{PCI_BUS_END, PCI_ECAM_BASE};
use axhal::mem::{phys_to_virt, virt_to_phys};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use hotmem_virtio::dma::DmaMemory;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{Cam, Command, MmioCam, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// Finds the first device of this kind, and maps its registers.
pub fn find(kind: DeviceType) -> Option<PciTransport> {
    let ecam = phys_to_virt(PCI_ECAM_BASE.into()).as_mut_ptr();
    // SAFETY: ArceOS maps the configuration space there, and does not use it itself.
    let mut root = PciRoot::new(unsafe { MmioCam::new(ecam, Cam::Ecam) });
    let is_wanted = |info: &_| virtio_device_type(info) == Some(kind);
    let (function, _) = (0..=PCI_BUS_END as u8)
        .find_map(|bus| root.enumerate_bus(bus).find(|(_, info)| is_wanted(info)))?;
    #[cfg(feature = "paging")]
    for (start, size) in
        root.bars(function).ok()?.iter().flatten().filter_map(|bar| bar.memory_address_size())
    {
        axmm::iomap((start as usize).into(), size as usize).ok()?;
    }
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER);
    PciTransport::new::<Direct, _>(&mut root, function).ok()
}

/// Takes memory that a device and its driver share, for good.
pub fn shared_memory(len: usize) -> Option<DmaMemory> {
    let pages = len.div_ceil(PAGE_SIZE);
    let start = global_allocator().alloc_pages(pages, PAGE_SIZE, UsageKind::Dma).ok()?;
    let addr = virt_to_phys(start.into()).as_usize() as u64;
    let start = NonNull::new(with_exposed_provenance_mut(start))?;
    // SAFETY: the pages were allocated above, and are never freed. There is no IOMMU.
    Some(unsafe { DmaMemory::new(start, addr, len) })
}

/// Devices see physical addresses. Drivers bring the memory of their queues.
enum Direct {}

// SAFETY: `find` has mapped the registers; nothing else is asked for.
unsafe impl Hal for Direct {
    fn dma_alloc(_: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // Address 0 means that there is none.
        (0, NonNull::dangling())
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        -1
    }

    unsafe fn mmio_phys_to_virt(addr: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(phys_to_virt((addr as usize).into()).as_mut_ptr()).expect("a kernel address")
    }

    unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        0
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
