//! A heap on a machine that grows and shrinks, for a kernel that accesses frames through a direct
//! map.
//!
//! It allocates pageblocks from the engine, and frees each with the last object in it, so that the
//! memory can be unplugged. As long as objects are left, the shrink reports their frames as its
//! blocker. (For a heap whose objects can be migrated, see `guest/src/kernel/heap.rs`.)
//!
//! `cargo run -p hotmem-lab --example heap`

use allocator_api2::vec::Vec as VecIn;
use anyhow::{Result, bail};
use hotmem::{
    AllocRequest, Blocker, Budget, Bytes, Frames, Hooks, Migration, OnlineType, Pfn, PfnRange,
    Progress, Shrink, ShrinkOptions, geometry::PAGEBLOCK_FRAMES,
};
use hotmem_lab::hosted::{Hosted, HostedHotplug, Threads};
use std::{alloc::Layout, fmt, ptr::NonNull};
use talc::{
    TalcCell,
    base::{CHUNK_UNIT, Talc, binning::Binning},
    source::Source,
};

const PAGEBLOCK_BYTES: u64 = Bytes::mib(2).0;

/// The source of the heap's memory.
struct Pageblocks<'m> {
    frames: &'m Frames<Threads>,
    /// The address of frame 0.
    memory: NonNull<u8>,
}

// SAFETY: it does not use the heap itself. Memory that is claimed was just allocated, and is freed
// only when the heap has no object in it.
unsafe impl Source for Pageblocks<'_> {
    const TRACK_HEAP_END: bool = true;

    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        // The largest overhead of alignment and of the heap's metadata.
        let own = talc::min_first_heap_size::<B>() + CHUNK_UNIT;
        let bytes = layout.size().checked_add(layout.align() + own).ok_or(())?;
        let want = AllocRequest::bytes(Bytes((bytes as u64).next_multiple_of(PAGEBLOCK_BYTES)));
        let frames = talc.source.frames.alloc(want).map_err(|_| ())?.into_raw();
        let offset = usize::try_from(frames.start().phys_addr()).map_err(|_| ())?;
        let len = usize::try_from(frames.bytes().0).map_err(|_| ())?;
        // SAFETY: the frames are the heap's, and are at this offset in the machine's memory.
        let claimed = unsafe { talc.claim(talc.source.memory.as_ptr().add(offset), len) };
        claimed.map(|_| ()).ok_or(())
    }

    unsafe fn resize(&mut self, free: *mut u8, end: *mut u8, is_empty: bool) -> *mut u8 {
        let place = |address: *mut u8| (address.addr() - self.memory.addr().get()) as u64;
        // The heap's metadata is in the first memory that was claimed.
        let first = Pfn::containing(place(free) - 1);
        let range = first.zip(Pfn::containing(place(end)));
        match range.and_then(|(first, end)| PfnRange::new(first, end)) {
            Some(frames) if is_empty => {
                // SAFETY: it was allocated by `acquire`, and the heap has no object in it.
                unsafe { self.frames.free_raw(frames) }.expect("allocated");
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

/// Unplugs as much of the plugged memory as possible, and prints what blocks the removal of the
/// rest.
fn shrink(
    hotplug: &mut HostedHotplug<'_>,
    kernel: &mut Kernel,
    room: PfnRange,
) -> Result<Option<Blocker>> {
    let unit = PAGEBLOCK_FRAMES as u64;
    let mut shrink = Shrink::new(ShrinkOptions { unit, ..room.into() });
    loop {
        match shrink.poll(hotplug, kernel, Budget::UNLIMITED) {
            Progress::Ready(removal) => {
                hotplug.commit_remove(removal).expect("it is this machine's")
            }
            Progress::Working => {}
            over => return Ok(over.pending()),
        }
    }
}

fn main() -> Result<()> {
    let machine = Hosted::builder().boot_memory(Bytes::mib(64)).room(Bytes::mib(512)).build()?;
    let (mut hotplug, mut kernel) = (machine.boot()?, Kernel);
    let frames = machine.frames();
    let memory = machine.address_of(Pfn::ZERO).expect("the machine has a first frame");
    let heap: TalcCell<_> = TalcCell::new(Pageblocks { frames, memory });
    // The first memory that is claimed is never freed, so it should be boot memory.
    drop(VecIn::<u8, _>::with_capacity_in(1, &heap));
    let show = |when: &str| {
        let counts = frames.counts();
        let [present, free] = [counts.present, counts.free].map(|frames| frames >> 8);
        println!("{when:20} {present:5} MiB of memory, {free:4} free");
    };
    show("booted");

    let room = machine.room();
    hotplug.announce(room)?;
    hotplug.add(room)?;
    hotplug.online(room, OnlineType::Kernel, &mut kernel)?;
    show("grown");

    let mut objects = Vec::new();
    for number in 0..1000u32 {
        let mut object = VecIn::new_in(&heap);
        object.resize(32 << 10, number);
        objects.push(object);
    }
    show("with 1000 objects");

    // The older objects lie in boot memory.
    drop(objects.drain(..400));
    let Some(blocker) = shrink(&mut hotplug, &mut kernel, room)? else {
        bail!("memory with live objects was removed");
    };
    show("shrunk around them");
    println!("in the way: {blocker}");
    let intact = |(number, object): (u32, &VecIn<u32, _>)| object.iter().all(|&n| n == number);
    if !(400..).zip(&objects).all(intact) {
        bail!("an object has changed");
    }

    objects.clear();
    show("without objects");
    if let Some(blocker) = shrink(&mut hotplug, &mut kernel, room)? {
        bail!("memory without objects was not removed: {blocker}");
    }
    show("shrunk");
    // SAFETY: no other thread uses this machine.
    unsafe { frames.validate() }?;
    Ok(())
}

#[test]
fn memory_is_removed_once_its_objects_are_freed() -> Result<()> {
    main()
}
