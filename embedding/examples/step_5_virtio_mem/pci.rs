//! Accesses PCI's configuration space by ports 0xcf8 and 0xcfc, and finds a virtio device on bus 0.

use crate::mapping::KernelMapping;
use core::arch::asm;
use core::ptr::NonNull;
use hotmem::{AllocRequest, Bytes, Hotplug, OneCpu, PfnRange};
use hotmem_embedding::{Failed, direct_map};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{
    Cam, Command, ConfigurationAccess, DeviceFunction, PciRoot,
};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// Maps the registers of the first virtio device of this kind, and returns its transport.
pub fn find(
    kind: DeviceType,
    hotplug: &mut Hotplug<'static, OneCpu, KernelMapping>,
) -> Result<PciTransport, Failed> {
    let mut root = PciRoot::new(Ports);
    let wanted = |(_, info): &(DeviceFunction, _)| virtio_device_type(info) == Some(kind);
    let (function, _) = root.enumerate_bus(0).find(wanted).ok_or("no such device on bus 0")?;
    let bars = root.bars(function).map_err(|_| "a BAR that cannot be")?;
    for (start, size) in bars.iter().flatten().filter_map(|bar| bar.memory_address_size()) {
        let range = PfnRange::from_bytes(start, Bytes(size.next_multiple_of(4096)))?;
        let frames = hotplug.frames();
        let take = || Some(frames.alloc(AllocRequest::frames(1)).ok()?.into_raw().start());
        // SAFETY: the mapping is not replaced.
        if !unsafe { hotplug.mapping_mut() }.map_registers(range, take) {
            return Err("no frames for page tables".into());
        }
    }
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER);
    Ok(PciTransport::new::<Direct, _>(&mut root, function)?)
}

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
        // SAFETY: the callers write only valid values for the register.
        unsafe { asm!("out dx, eax", in("dx") 0xcfc_u16, in("eax") word) };
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Ports
    }
}

fn select(function: DeviceFunction, register: u8) {
    let address = 1 << 31 | Cam::MmioCam.cam_offset(function, register);
    // SAFETY: this only selects the register.
    unsafe { asm!("out dx, eax", in("dx") 0xcf8_u16, in("eax") address) };
}

/// The HAL for devices that use physical addresses, because there is no IOMMU. Drivers provide the
/// memory of their queues.
enum Direct {}

// SAFETY: `find` has mapped the registers, and no other function of the HAL is used.
unsafe impl Hal for Direct {
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
