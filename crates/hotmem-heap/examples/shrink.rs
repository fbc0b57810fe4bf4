//! Puts a heap on plugged memory, frees its objects, and unplugs the memory.

use hotmem::{AlwaysMapped, Frames, Hotplug, OneCpu, PfnRange};
use hotmem::{Budget, NoHooks, OnlineType, Progress, Shrink};
use hotmem_heap::Heap;
use hotmem_port::LinearMap;
use spin::mutex::SpinMutex;
use std::alloc::{Layout, alloc_zeroed};
use std::error::Error;

/// The sizes of boot memory and of plugged memory.
const BOOT_MEMORY: u64 = 128 << 20;
const PLUGGED_MEMORY: u64 = 384 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let size = usize::try_from(BOOT_MEMORY + PLUGGED_MEMORY)?;
    let layout = Layout::from_size_align(size, 4096)?;
    // SAFETY: the layout is not empty.
    let memory = unsafe { alloc_zeroed(layout) };
    let frames = Frames::new(OneCpu);
    // SAFETY: the memory is mapped at this address, and nothing else uses it.
    let mut hotplug = unsafe {
        let mapping = AlwaysMapped::new(memory, PfnRange::ALL);
        Hotplug::bootstrap(&frames, mapping, &[(0..BOOT_MEMORY).into()])?
    };
    let heap: Heap<'_, OneCpu, SpinMutex<()>> = Heap::new(&frames, LinearMap::new(memory));

    let plugged = PfnRange::try_from(BOOT_MEMORY..BOOT_MEMORY + PLUGGED_MEMORY)?;
    hotplug.announce(plugged)?;
    hotplug.add(plugged)?;
    hotplug.online(plugged, OnlineType::Kernel, &mut NoHooks)?;

    let layout = Layout::new::<[u64; 100]>();
    let objects: Vec<_> = (0..200_000).map_while(|_| heap.alloc(layout)).collect();
    println!("{} objects, {} MiB in use", objects.len(), frames.counts().used >> 8);
    for object in objects {
        // SAFETY: the object was allocated above with this layout.
        unsafe { heap.free(object, layout) };
    }
    println!("freed: {} in empty slabs", heap.trim());

    let mut shrink = Shrink::new(plugged);
    while let Progress::Ready(removal) = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED)
    {
        hotplug.commit_remove(removal);
    }
    println!("{} MiB of memory are present", frames.counts().present >> 8);
    if frames.counts().present << 12 == BOOT_MEMORY {
        Ok(())
    } else {
        Err("some memory could not be unplugged".into())
    }
}

#[test]
fn memory_is_unplugged_after_all_objects_are_freed() -> Result<(), Box<dyn Error>> {
    main()
}
