//! Boots an engine, plugs memory, allocates a page of it, and unplugs the memory.
//!
//! In a kernel, the firmware's map describes boot memory, and a device plugs more memory. In this
//! example, both are parts of 64 MiB of this process's memory.

use hotmem::{AllocRequest, AlwaysMapped, BootMap, Frames, Hotplug, NoHooks, OneCpu, OnlineType};
// For removing the memory:
use hotmem::{Budget, Progress, Shrink};
use std::alloc::{Layout, alloc_zeroed};
use std::error::Error;
use std::ops::Range;

/// The allocator. Interrupt handlers and other CPUs may use it while the control path works.
static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let layout = Layout::from_size_align(64 << 20, 4096)?;
    // SAFETY: the layout is not empty.
    let physical_memory = unsafe { alloc_zeroed(layout) };

    // Converts a range in MiB to a range of frames.
    let frames = |mib: Range<u64>| (mib.start * MIB..mib.end * MIB).try_into();

    // The firmware's map has 32 MiB of RAM, of which the kernel's image takes the second MiB.
    let ram = [(0..32 * MIB).into()];
    let kernel = [(MIB..2 * MIB).into()];
    let map = BootMap { reserved: &kernel, ..BootMap::from(&ram) };
    // SAFETY: these 64 MiB are mapped, and nothing else uses the memory that the map does not
    // reserve.
    let mut hotplug = unsafe {
        let mapping = AlwaysMapped::new(physical_memory, frames(0..64)?);
        Hotplug::bootstrap(&FRAMES, mapping, map)?
    };

    // A device announces a region, and then plugs 16 MiB of it.
    let region = frames(32..64)?;
    let plugged = frames(32..48)?;
    hotplug.announce(region)?;
    hotplug.add(plugged)?;
    hotplug.online(plugged, OnlineType::Movable, &mut NoHooks)?;

    let page = FRAMES.alloc(AllocRequest::frames(1).movable())?;
    println!("the first plugged page: {}", page.range());
    drop(page);

    // The device requests the memory back. `Shrink` removes all memory that is not in use, from the
    // top down.
    let mut shrink = Shrink::new(region);
    while let Progress::Ready(removal) = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED)
    {
        println!("removed: {}", removal.range());
        // Here the driver unplugs the memory, and the device acknowledges.
        hotplug.commit_remove(removal);
    }
    Ok(())
}

#[test]
fn memory_is_plugged_allocated_and_removed() {
    main().unwrap();
    assert_eq!(FRAMES.counts().online << 12, 32 * MIB, "boot memory was removed");
}
