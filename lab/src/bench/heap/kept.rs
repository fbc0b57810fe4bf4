//! Measures how much memory a heap keeps after most of its objects were freed.

use crate::bench::random::Random;
use crate::bench::record::{Metric, Sample};
use crate::hosted::{Hosted, ThreadCpus};
use anyhow::{Context, Result, ensure};
use hotmem::{Bytes, Frames, Pfn};
use hotmem_heap::{FrameSource, Heap};
use hotmem_port::LinearMap;
use spin::mutex::SpinMutex;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;
use talc::{TalcLock, source::AllocatorSource};

/// The lock of each heap.
type Lock = SpinMutex<()>;

/// The memory of all frames that are in use.
const KEPT: Metric = ("kept", "MiB");
/// The memory of all pageblocks in which a frame is in use. It cannot be unplugged.
const UNPLUGGABLE: Metric = ("not_unpluggable", "MiB");

/// How many of a hundred objects are not freed.
const PERCENT: [usize; 3] = [10, 1, 0];

/// The sizes of objects.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    /// 16 to 1023 bytes, each size equally often.
    Small,
    /// 90 % from 16 bytes to 1 KiB, 9 % to 64 KiB, 1 % to 4 MiB.
    Mixed,
}

impl Sizes {
    const ALL: [Sizes; 2] = [Sizes::Small, Sizes::Mixed];

    fn name(self) -> &'static str {
        match self {
            Sizes::Small => "16-1023B",
            Sizes::Mixed => "16B-4MiB",
        }
    }

    fn layout(self, random: &mut Random) -> Result<Layout> {
        let (min, max) = match (self, random.below(100)) {
            (Sizes::Small, _) => (16, 1024),
            (Sizes::Mixed, 0) => (64 << 10, 4 << 20),
            (Sizes::Mixed, 1..10) => (4 << 10, 64 << 10),
            (Sizes::Mixed, _) => (16, 1 << 10),
        };
        Ok(Layout::from_size_align(min + random.index_below(max - min), 8)?)
    }
}

/// Measures all heaps, with objects of `burst` bytes that `seed` chooses.
pub(super) fn measure_all(burst: Bytes, seed: u64, sample: &mut Sample) -> Result<()> {
    for sizes in Sizes::ALL {
        let load = Burst { sizes, bytes: burst.0, seed };
        measure(load, "hotmem", sample, |frames, map, load| {
            let heap: Heap<'_, ThreadCpus, Lock> = Heap::new(frames, map);
            load(&heap, &|| _ = heap.trim())
        })?;
        measure(load, "talc, frames", sample, |frames, map, load| {
            load(&TalcLock::<Lock, _>::new(FrameSource::new(frames, map)), &|| ())
        })?;
        measure(load, "talc, blocks", sample, |frames, map, load| {
            let heap: Heap<'_, ThreadCpus, Lock> = Heap::new(frames, map);
            let talc: TalcLock<Lock, _> = TalcLock::new(AllocatorSource::new(&heap));
            load(&talc, &|| _ = heap.trim())
        })?;
    }
    Ok(())
}

/// The objects that a heap gets.
#[derive(Clone, Copy, Debug)]
struct Burst {
    sizes: Sizes,
    /// The size of all objects before most of them are freed.
    bytes: u64,
    seed: u64,
}

/// Loads a heap. The second argument is a function that lets the heap free what it keeps for later.
type Load<'l> = &'l mut dyn FnMut(&dyn GlobalAlloc, &dyn Fn()) -> Result<()>;

/// Boots a machine, lets `with_heap` make a heap of its frames and load it, and adds the memory that
/// the heap keeps to `sample`.
fn measure(
    burst: Burst,
    subject: &str,
    sample: &mut Sample,
    with_heap: impl FnOnce(&Frames<ThreadCpus>, LinearMap, Load<'_>) -> Result<()>,
) -> Result<()> {
    let Burst { sizes, bytes, seed } = burst;
    // Several times as much as the objects, so that no heap runs out of memory.
    let memory = Bytes(4 * bytes.next_multiple_of(Bytes::mib(128).0));
    let machine = Hosted::builder().boot_memory(memory).build()?;
    let _hotplug = machine.boot()?;
    let base = machine.address_of(Pfn::ZERO).context("the machine has no first frame")?;
    let frames = machine.frames();
    let before = frames.counts();
    let mut add = |percent| {
        let (now, case) = (frames.counts(), format!("{}/{percent}%kept", sizes.name()));
        let mib = |frames: u64| frames as f64 / 256.0;
        sample.add(&case, subject, KEPT, mib(before.free - now.free));
        sample.add(&case, subject, UNPLUGGABLE, mib(before.free_whole - now.free_whole));
    };
    let mut load = |heap: &dyn GlobalAlloc, trim: &dyn Fn()| {
        let mut objects = Objects { heap, sizes, random: Random::with_seed(seed), all: Vec::new() };
        objects.alloc_and_replace(bytes)?;
        let count = objects.all.len();
        for percent in PERCENT {
            objects.free_until(count * percent / 100);
            trim();
            add(percent);
        }
        Ok(())
    };
    let result = with_heap(frames, LinearMap::new(base.as_ptr()), &mut load);
    result.with_context(|| format!("{subject}, {}", sizes.name()))?;
    ensure!(hotmem::violated_invariants().count == 0, "{subject} has freed something twice");
    Ok(())
}

/// The objects of a heap.
struct Objects<'h> {
    heap: &'h dyn GlobalAlloc,
    sizes: Sizes,
    random: Random,
    all: Vec<(NonNull<u8>, Layout)>,
}

impl Objects<'_> {
    /// Allocates objects of `bytes`, and then replaces random objects, twice as many as there are.
    fn alloc_and_replace(&mut self, bytes: u64) -> Result<()> {
        let mut allocated = 0;
        while allocated < bytes {
            self.alloc()?;
            allocated += self.all.last().map_or(0, |(_, layout)| layout.size() as u64);
        }
        for _ in 0..2 * self.all.len() {
            self.free();
            self.alloc()?;
        }
        Ok(())
    }

    fn alloc(&mut self) -> Result<()> {
        let layout = self.sizes.layout(&mut self.random)?;
        // SAFETY: the layout has at least 16 bytes.
        let object = NonNull::new(unsafe { self.heap.alloc(layout) });
        let object = object.context("the heap has no memory for an object")?;
        // SAFETY: the object was just allocated with at least 16 bytes.
        unsafe { object.write(1) };
        self.all.push((object, layout));
        Ok(())
    }

    /// Frees a random object.
    fn free(&mut self) {
        let (object, layout) = self.all.swap_remove(self.random.index_below(self.all.len()));
        // SAFETY: the object was allocated with this layout, and is no longer in the list.
        unsafe { self.heap.dealloc(object.as_ptr(), layout) };
    }

    /// Frees random objects until `count` are left.
    fn free_until(&mut self, count: usize) {
        while self.all.len() > count {
            self.free();
        }
    }
}
