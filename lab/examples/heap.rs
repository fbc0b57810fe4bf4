//! A heap on a hosted machine whose memory is plugged and unplugged. A kernel that accesses frames
//! through a direct map can have such a heap.
//!
//! The heap allocates pageblocks from the engine, and frees them when it has no object in them, so
//! that their memory can be removed. While the memory has objects, the shrink returns their frames
//! as its blocker. The objects of this heap cannot be migrated; `guest/src/kernel/heap.rs` has a
//! heap whose objects can be migrated.
//!
//! `cargo run -p hotmem-lab --example heap`

use allocator_api2::vec::Vec as VecIn;
use anyhow::{Result, bail};
use hotmem::{
    AllocRequest, Blocker, Budget, Bytes, Frames, Hooks, Migration, OnlineType, Pfn, PfnRange,
    Progress, Shrink, ShrinkOptions, geometry::PAGEBLOCK_FRAMES,
};
use hotmem_lab::hosted::{Hosted, HostedHotplug, ThreadCpus};
use std::{alloc::Layout, fmt, ptr::NonNull};
use talc::{
    TalcCell,
    base::{CHUNK_UNIT, Talc, binning::Binning},
    source::Source,
};

const PAGEBLOCK_BYTES: u64 = Bytes::mib(2).0;

/// The source of the heap's memory.
struct Pageblocks<'m> {
    frames: &'m Frames<ThreadCpus>,
    /// The address of frame 0.
    memory: NonNull<u8>,
}

// SAFETY: the functions do not allocate from the heap. The heap gets only frames that were
// allocated for it, and they are freed only when the heap has no object in them.
unsafe impl Source for Pageblocks<'_> {
    const TRACK_HEAP_END: bool = true;

    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        // The largest size of the heap's metadata in new memory.
        let metadata = talc::min_first_heap_size::<B>() + CHUNK_UNIT;
        let bytes = layout.size().checked_add(layout.align() + metadata).ok_or(())?;
        let pageblocks = (bytes as u64).div_ceil(PAGEBLOCK_BYTES);
        let request = AllocRequest::frames(pageblocks * PAGEBLOCK_FRAMES as u64);
        let frames = talc.source.frames.alloc(request).map_err(|_| ())?.into_raw();
        let offset = usize::try_from(frames.start().phys_addr()).map_err(|_| ())?;
        let len = usize::try_from(frames.bytes().0).map_err(|_| ())?;
        // SAFETY: the frames are allocated for the heap, and have this offset in the machine's
        // memory.
        let claimed = unsafe { talc.claim(talc.source.memory.as_ptr().add(offset), len) };
        claimed.map(|_| ()).ok_or(())
    }

    unsafe fn resize(&mut self, free: *mut u8, end: *mut u8, is_empty: bool) -> *mut u8 {
        let offset = |address: *mut u8| (address.addr() - self.memory.addr().get()) as u64;
        // The heap's metadata is in the first memory that was claimed.
        let first = Pfn::containing(offset(free) - 1);
        let range = first.zip(Pfn::containing(offset(end)));
        match range.and_then(|(first, end)| PfnRange::new(first, end)) {
            Some(frames) if is_empty => {
                // SAFETY: `acquire` allocated the frames, and the heap has no object in them.
                unsafe { self.frames.free_raw(frames) }.expect("`acquire` allocated the frames");
                free
            }
            _ => end,
        }
    }
}

impl fmt::Debug for Pageblocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pageblocks").finish_non_exhaustive()
    }
}

/// A kernel that cannot migrate the objects of its heap.
struct Kernel;

impl Hooks for Kernel {
    fn migrate(&mut self, _: PfnRange) -> Migration {
        Migration::Unmovable("live objects on the heap")
    }
}

/// Removes as much of `range` as possible. Returns the blocker if memory remains.
fn shrink(
    hotplug: &mut HostedHotplug<'_>,
    kernel: &mut Kernel,
    range: PfnRange,
) -> Result<Option<Blocker>> {
    let unit = PAGEBLOCK_FRAMES as u64;
    let mut shrink = Shrink::new(ShrinkOptions { unit, ..range.into() });
    loop {
        match shrink.poll(hotplug, kernel, Budget::UNLIMITED) {
            Progress::Ready(removal) => hotplug.commit_remove(removal),
            Progress::Working => {}
            Progress::Pending(blocker) => return Ok(Some(blocker)),
            Progress::Idle => return Ok(None),
        }
    }
}

fn main() -> Result<()> {
    let builder = Hosted::builder().boot_memory(Bytes::mib(64));
    let machine = builder.hotplug_size(Bytes::mib(512)).build()?;
    let (mut hotplug, mut kernel) = (machine.boot()?, Kernel);
    let frames = machine.frames();
    let memory = machine.address_of(Pfn::ZERO).expect("the machine has a first frame");
    let heap: TalcCell<_> = TalcCell::new(Pageblocks { frames, memory });
    // The heap never frees its first memory. The machine has only boot memory now, so the first
    // memory is boot memory.
    drop(VecIn::<u8, _>::with_capacity_in(1, &heap));
    let print_memory = |moment: &str| {
        let counts = frames.counts();
        let [present, free] = [counts.present, counts.free].map(|frames| frames >> 8);
        println!("{moment:20} {present:5} MiB of memory, {free:4} free");
    };
    print_memory("booted");

    let range = machine.hotplug_range();
    hotplug.announce(range)?;
    hotplug.add(range)?;
    hotplug.online(range, OnlineType::Kernel, &mut kernel)?;
    print_memory("memory plugged");

    let mut objects = Vec::new();
    for number in 0..1000u32 {
        let mut object = VecIn::new_in(&heap);
        object.resize(32 << 10, number);
        objects.push(object);
    }
    print_memory("with 1000 objects");

    // The older objects lie in boot memory.
    drop(objects.drain(..400));
    let Some(blocker) = shrink(&mut hotplug, &mut kernel, range)? else {
        bail!("memory with live objects was removed");
    };
    print_memory("memory removed");
    println!("the blocker: {blocker}");
    let is_intact = |(number, object): (u32, &VecIn<u32, _>)| object.iter().all(|&n| n == number);
    if !(400..).zip(&objects).all(is_intact) {
        bail!("an object has changed");
    }

    objects.clear();
    print_memory("without objects");
    if let Some(blocker) = shrink(&mut hotplug, &mut kernel, range)? {
        bail!("memory without objects was not removed: {blocker}");
    }
    print_memory("all memory removed");
    // SAFETY: no other thread uses this machine.
    unsafe { frames.validate() }?;
    Ok(())
}

#[test]
fn memory_is_removed_after_its_objects_are_freed() -> Result<()> {
    main()
}
