//! Step 4: memory that the boot code has not mapped. A DIMM of 1 GiB is added, which
//! allocates page tables, and removing it frees them.
#![no_std]
#![no_main]

mod mapping;

use hotmem::{AllocRequest, Progress, Shrink};
use hotmem::{BootMap, BootRange, Budget, Frames, Hotplug, NoHooks, OneCpu, OnlineType};
use hotmem_embedding::{Boot, PrintedError, direct_map, kernel, println};
use mapping::KernelMapping;

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
    let used_before = used_frames();

    if boot.dimm.is_empty() {
        return Err("the machine has no DIMM".into());
    }
    let dimm = boot.dimm.clone().try_into()?;
    hotplug.announce(dimm)?;
    hotplug.add(dimm)?;
    println!("frames for page tables: {}", used_frames() - used_before);
    hotplug.online(dimm, OnlineType::Movable, &mut NoHooks)?;

    let gib = FRAMES.alloc(AllocRequest::frames(dimm.frames()).movable())?;
    for page in gib.range().chunks(512) {
        // SAFETY: this function has allocated the memory.
        unsafe { direct_map(page.start().phys_addr()).cast::<u64>().write(page.start().number()) };
    }
    println!("1 GiB in one run: {}", gib.range());
    drop(gib);

    let mut shrink = Shrink::new(dimm);
    while let Progress::Ready(removal) = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED)
    {
        hotplug.commit_remove(removal);
    }
    println!("memory: {} KiB of words", FRAMES.counts().words * 4);
    if used_frames() != used_before { Err("page tables were not freed".into()) } else { Ok(()) }
}

/// Returns the number of frames in use, without those of the engine's words. The engine keeps the
/// words of removed memory for memory that is added at the same place later.
fn used_frames() -> u64 {
    let counts = FRAMES.counts();
    counts.used - counts.words
}
