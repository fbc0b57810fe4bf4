//! Finds virtio devices on PCI.

use ax_alloc::{UsageKind, global_allocator};
use ax_hal::mem::{phys_to_virt, virt_to_phys};
use core::ops::Range;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::pci::{Mmio, PciTransport, find_mapped};
use virtio_drivers::PAGE_SIZE;
use virtio_drivers::transport::DeviceType;

/// A virtio device's transport.
pub type Transport = PciTransport<Mmio>;

/// Where QEMU's q35 has the configuration space of PCI.
const ECAM: usize = 0xb000_0000;

/// Finds the first device of this kind, and maps its registers. Returns `None` if there is none.
pub fn find(kind: DeviceType) -> Option<Transport> {
    let ecam = NonNull::new(phys_to_virt(ECAM.into()).as_mut_ptr())?;
    // SAFETY: ArceOS maps the configuration space, and does not use it itself. Only the transport that
    // is returned uses the device's registers.
    unsafe { find_mapped(ecam, 0..=255, kind, map) }.expect("the device is of virtio 1.0")
}

fn map(registers: Range<u64>) -> Option<NonNull<u8>> {
    let (start, len) = (registers.start as usize, (registers.end - registers.start) as usize);
    ax_mm::iomap(start.into(), len).ok()?;
    NonNull::new(phys_to_virt(start.into()).as_mut_ptr())
}

/// Allocates memory that a device and its driver share, and that is never freed.
pub fn shared_memory(len: usize) -> Option<DmaMemory> {
    let pages = len.div_ceil(PAGE_SIZE);
    let start = global_allocator().alloc_dma32_pages(pages, PAGE_SIZE, UsageKind::Dma).ok()?;
    let addr = virt_to_phys(start.into()).as_usize() as u64;
    let start = NonNull::new(with_exposed_provenance_mut(start))?;
    // SAFETY: the pages were allocated above, and are never freed. The machine has no IOMMU, so the
    // device uses physical addresses.
    Some(unsafe { DmaMemory::new(start, addr, len) })
}
