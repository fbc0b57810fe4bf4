//! Accesses PCI's configuration space by ports 0xcf8 and 0xcfc, and finds a virtio device on bus 0.

use crate::mapping::KernelMapping;
use core::arch::asm;
use core::ptr::NonNull;
use hotmem::{AllocRequest, Bytes, Hotplug, OneCpu, PfnRange};
use hotmem_embedding::{PrintedError, direct_map};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{
    Cam, Command, ConfigurationAccess, DeviceFunction, PciRoot,
};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// Finds the first virtio device of this kind on bus 0, maps its registers, and returns its
/// transport.
pub fn find(
    kind: DeviceType,
    hotplug: &mut Hotplug<'static, OneCpu, KernelMapping>,
) -> Result<PciTransport, PrintedError> {
    let mut root = PciRoot::new(Ports);
    let is_of_kind = |(_, info): &(DeviceFunction, _)| virtio_device_type(info) == Some(kind);
    let (function, _) = root.enumerate_bus(0).find(is_of_kind).ok_or("no such device on bus 0")?;
    let bars = root.bars(function).map_err(|_| "a BAR is invalid")?;
    for (start, size) in bars.iter().flatten().filter_map(|bar| bar.memory_address_size()) {
        let range = PfnRange::from_bytes(start, Bytes(size.next_multiple_of(4096)))?;
        let frames = hotplug.frames();
        let take_frame = || Some(frames.alloc(AllocRequest::frames(1)).ok()?.into_raw().start());
        // SAFETY: this does not replace the mapping, and maps no memory of the engine.
        if !unsafe { hotplug.mapping_mut() }.map_registers(range, take_frame) {
            return Err("no frames for page tables".into());
        }
    }
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER);
    Ok(PciTransport::new::<PhysicalHal, _>(&mut root, function)?)
}

/// The configuration space, accessed by ports.
struct Ports;

impl ConfigurationAccess for Ports {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        select(function, register);
        let word: u32;
        // SAFETY: reading a register of the configuration space affects nothing in memory.
        unsafe { asm!("in eax, dx", in("dx") 0xcfc_u16, out("eax") word) };
        word
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        select(function, register);
        // SAFETY: the callers use the registers as PCI specifies.
        unsafe { asm!("out dx, eax", in("dx") 0xcfc_u16, in("eax") word) };
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Ports
    }
}

fn select(function: DeviceFunction, register: u8) {
    let address = 1 << 31 | Cam::MmioCam.cam_offset(function, register);
    // SAFETY: a write to port 0xcf8 only selects the register.
    unsafe { asm!("out dx, eax", in("dx") 0xcf8_u16, in("eax") address) };
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
