//! Puts a heap on plugged memory, frees its objects, and unplugs the memory.

use hotmem::{Budget, Frames, Hotplug, NoHooks, OneCpu, OnlineType, Progress, Shrink};
use hotmem_heap::Heap;
use hotmem_port::LinearMap;
use hotmem_testkit::{Memory, SECTION, boot, range};
use spin::mutex::SpinMutex;
use std::{alloc::Layout, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(OneCpu);
    let mut hotplug: Hotplug<'_, OneCpu> = boot(&frames, &memory, SECTION);
    let heap: Heap<'_, OneCpu, SpinMutex<()>> = Heap::new(&frames, LinearMap::new(memory.start()));

    let plugged = range(SECTION, 3 * SECTION);
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
        hotplug.commit_remove(removal).map_err(|_| "the removal is one of another instance")?;
    }
    println!("{} MiB of memory are present", frames.counts().present >> 8);
    if frames.counts().present == SECTION {
        Ok(())
    } else {
        Err("some memory could not be unplugged".into())
    }
}

#[test]
fn memory_is_unplugged_after_all_objects_are_freed() -> Result<(), Box<dyn Error>> {
    main()
}
