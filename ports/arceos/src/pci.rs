//! Finds virtio devices on PCI.

use crate::wakeup;
use axalloc::{UsageKind, global_allocator};
use axconfig::devices::{PCI_BUS_END, PCI_ECAM_BASE};
use axhal::mem::{phys_to_virt, virt_to_phys};
use core::ops::Range;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::pci::{Mmio, PciTransport, find_mapped};
use virtio_drivers::PAGE_SIZE;
use virtio_drivers::transport::DeviceType;

/// A virtio device's transport.
pub type Transport = PciTransport<Mmio>;

/// Finds the first device of this kind, and maps its registers. Returns `None` if there is none.
pub fn find(kind: DeviceType) -> Option<Transport> {
    let ecam = NonNull::new(phys_to_virt(PCI_ECAM_BASE.into()).as_mut_ptr())?;
    let buses = 0..=u8::try_from(PCI_BUS_END).expect("a bus number has 8 bits");
    // SAFETY: ArceOS maps the configuration space of these buses at `PCI_ECAM_BASE`, and does not use
    // it itself.
    // Only the transport that is returned uses the device's registers.
    let found =
        unsafe { find_mapped(ecam, buses, kind, map) }.expect("the device is of virtio 1.0")?;
    found.interrupt_line().into_iter().for_each(wakeup::listen);
    Some(found)
}

/// Maps registers. Without the feature `paging` the boot code has mapped them already.
fn map(registers: Range<u64>) -> Option<NonNull<u8>> {
    let start = (registers.start as usize).into();
    #[cfg(feature = "paging")]
    axmm::iomap(start, (registers.end - registers.start) as usize).ok()?;
    NonNull::new(phys_to_virt(start).as_mut_ptr())
}

/// Allocates memory that a device and its driver share, and that is never freed.
pub fn shared_memory(len: usize) -> Option<DmaMemory> {
    let pages = len.div_ceil(PAGE_SIZE);
    let start = global_allocator().alloc_pages(pages, PAGE_SIZE, UsageKind::Dma).ok()?;
    let addr = virt_to_phys(start.into()).as_usize() as u64;
    let start = NonNull::new(with_exposed_provenance_mut(start))?;
    // SAFETY: the pages were allocated above, and are never freed. The machine has no IOMMU, so the
    // device uses physical addresses.
    Some(unsafe { DmaMemory::new(start, addr, len) })
}
