//! Step 5: a virtio-mem device. The host requests a size, and the driver plugs or unplugs memory
//! until that size is reached.
#![no_std]
#![no_main]

#[path = "../step_4_mapping/mapping.rs"]
mod mapping;
mod pci;
mod shared_memory;

use hotmem::{AllocRequest, OnlineType};
use hotmem::{BootMap, BootRange, Budget, Bytes, Frames, Hotplug, NoHooks, OneCpu};
use hotmem_embedding::{Boot, PrintedError, direct_map, kernel, now, println};
use hotmem_virtio::mem::{HotplugDevice, HotplugMemory, Progress, Status};
use mapping::KernelMapping;
use shared_memory::shared_memory;
use virtio_drivers::transport::{DeviceType, pci::PciTransport};

kernel!(main);

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

fn main(boot: &Boot) -> Result<(), PrintedError> {
    let ram = boot.mapped_ram().map(BootRange::from);
    let reserved = boot.in_use().map(BootRange::from);
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    let mapping = KernelMapping::take_over_boot_tables()?;
    // SAFETY: the boot code has mapped all RAM of the boot map. What of it is in use is reserved: the
    // image, with the stack and the page tables, and the memory of the firmware.
    let mut hotplug = unsafe { Hotplug::bootstrap(&FRAMES, mapping, map) }?;
    for ram in boot.unmapped_ram() {
        mapping::add_boot_ram(&mut hotplug, ram)?;
    }
    let boot_memory = FRAMES.counts().present;

    let transport = pci::find(DeviceType::Memory, &mut hotplug)?;
    let queue = shared_memory(&FRAMES, HotplugDevice::<PciTransport, OneCpu>::MEMORY_SIZE)?;
    // Put memory online as movable. A call of `poll` takes at most 128 MiB offline.
    let memory = HotplugMemory::new(OnlineType::Movable, Budget { pageblocks: 64 });
    let mut device = HotplugDevice::new(transport, queue, memory)?;

    let mut reached_size = Bytes::ZERO;
    loop {
        // A kernel calls `poll` when the device interrupts, and at the time in `Progress::Pending`.
        let progress = device.poll(now(), 1000, &mut hotplug, &mut NoHooks);
        if let Progress::Ready(failure) = progress.map_err(|_| "another instance's memory")? {
            return Err(failure.into());
        }
        let plugged = device.driver().plugged();
        if device.driver().status() != Status::Reached || plugged == reached_size {
            continue;
        }
        let added = (FRAMES.counts().present - boot_memory) >> 8;
        println!("the device has {plugged} plugged, the kernel {added} MiB more than at boot");
        reached_size = plugged;
        if plugged == Bytes::ZERO {
            println!("memory: {} KiB of words", FRAMES.counts().words * 4);
            return Ok(());
        }
        let gib = FRAMES.alloc(AllocRequest::frames(Bytes::gib(1).frames()).movable())?;
        println!("an allocation of 1 GiB: {}", gib.range());
        // SAFETY: this function has allocated the memory.
        unsafe { direct_map(gib.range().start().phys_addr()).write_bytes(1, 4096) };
        drop(gib);
        // `cargo xtask embed` types this into QEMU's monitor.
        println!("(qemu) qom-set /machine/peripheral/vmem0 requested-size 0");
    }
}
