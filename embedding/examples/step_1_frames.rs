//! Step 1: boot memory. The frame allocator manages the RAM in the loader's map.
#![no_std]
#![no_main]

use hotmem::{AllocRequest, AlwaysMapped, BootMap, BootRange, Frames, Hotplug, OneCpu};
use hotmem_embedding::{BOOT_MAPPING, Boot, PrintedError, direct_map, kernel, println};

kernel!(main);

/// The allocator. Any context may use it without a lock, interrupt handlers included.
static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

fn main(boot: &Boot) -> Result<(), PrintedError> {
    let ram = boot.mapped_ram().map(BootRange::from);
    let reserved = boot.in_use().map(BootRange::from);
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    // SAFETY: the boot code has mapped a GiB of memory in the direct map. What of it is in use is
    // reserved: the image, with the stack and the page tables, and the memory of the firmware.
    let _hotplug = unsafe {
        let mapping = AlwaysMapped::new(direct_map(0), BOOT_MAPPING.try_into()?);
        Hotplug::bootstrap(&FRAMES, mapping, map)?
    };

    let page = FRAMES.alloc(AllocRequest::frames(1))?;
    let huge_page = FRAMES.alloc(AllocRequest::order(9))?;
    println!("a page: {}, 2 MiB: {}", page.range(), huge_page.range());
    drop(huge_page);
    // A page table entry can store only a number, not an `Allocation`. So the kernel converts the
    // `Allocation` to a raw range, and frees the frame itself.
    let raw = page.into_raw();
    // SAFETY: the frame was allocated above, and nothing uses it any more.
    unsafe { FRAMES.free_raw(raw) }?;

    let counts = FRAMES.counts();
    let metadata: u64 = FRAMES.metadata().map(|metadata| metadata.frames.frames()).sum();
    println!("memory: {} MiB online, {} KiB of metadata", counts.online >> 8, metadata << 2);
    Ok(())
}
