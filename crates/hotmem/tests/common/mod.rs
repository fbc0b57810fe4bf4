//! What the tests of whole machines share: memory that plays physical memory, and CPU numbers.
#![allow(dead_code, reason = "each test uses a part of it")]

use hotmem::{
    BootMap, BootRange, Bytes, Counts, DirectMap, Frames, FreeErrorKind, Hotplug, MAX_NODES,
    MemoryBlock, Metadata, NodeId, OneCpu, Pfn, PfnRange, Platform, Poisoned, RegionId, State,
    Zone, ZoneInfo, geometry,
};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const BLOCK: u64 = geometry::PAGEBLOCK_FRAMES as u64;
pub(crate) const SECTION: u64 = geometry::SECTION_FRAMES as u64;
/// Longest allocation that is a run of bits in one word.
pub(crate) const WORD: u64 = geometry::LINE_WORD_BITS as u64;

pub(crate) fn range(start: u64, frames: u64) -> PfnRange {
    PfnRange::with_len(pfn(start), frames).expect("within the address limit")
}

pub(crate) fn pfn(number: u64) -> Pfn {
    Pfn::new(number).expect("within the address limit")
}

pub(crate) fn numbers(range: PfnRange) -> std::ops::Range<u64> {
    range.start().number()..range.end().number()
}

/// A machine that has booted with the first `frames` of this memory.
pub(crate) fn boot<'f>(
    machine: &'f Frames<OneCpu>,
    memory: &Memory,
    frames: u64,
) -> Hotplug<'f, OneCpu> {
    let ram = [BootRange { start: 0, len: range(0, frames).bytes() }];
    Hotplug::bootstrap(machine, memory.direct_map(), &BootMap::of_ram(&ram))
        .expect("enough to boot")
}

/// Heap memory that plays the physical memory from address 0 up.
pub(crate) struct Memory {
    allocated: *mut u8,
    layout: Layout,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: all access is by atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(frames: u64) -> Memory {
        let bytes = usize::try_from(frames * geometry::FRAME_SIZE).expect("a 64-bit machine");
        // Aligned by hand: only then does zeroed memory come without being written.
        let layout = Layout::from_size_align(bytes + 4096, 1).expect("a size that can be had");
        // SAFETY: the layout is not empty.
        let allocated = unsafe { alloc_zeroed(layout) };
        assert!(!allocated.is_null());
        let base =
            allocated.wrapping_add(allocated.addr().next_multiple_of(4096) - allocated.addr());
        Memory { allocated, layout, base, bytes }
    }

    /// For a machine that is gone before this memory is.
    pub(crate) fn direct_map(&self) -> DirectMap {
        // SAFETY: all of it is readable and writable, and used through this and the engine only.
        unsafe { DirectMap::at(self.base) }
    }

    /// The first word of a frame.
    pub(crate) fn word(&self, frame: u64) -> &AtomicU64 {
        self.word_at(frame * geometry::FRAME_SIZE)
    }

    /// All words of a frame.
    pub(crate) fn words(&self, frame: u64) -> impl Iterator<Item = u64> {
        let addresses =
            (frame * geometry::FRAME_SIZE..(frame + 1) * geometry::FRAME_SIZE).step_by(8);
        addresses.map(|address| self.word_at(address).load(Ordering::Relaxed))
    }

    fn word_at(&self, address: u64) -> &AtomicU64 {
        let at = usize::try_from(address).expect("a 64-bit machine");
        assert!(at < self.bytes && at.is_multiple_of(8));
        // SAFETY: within the memory, aligned, and all access is by atomics.
        unsafe { &*self.base.add(at).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.allocated, self.layout) };
    }
}

/// Each thread says which CPU it is.
#[derive(Default)]
pub(crate) struct Cpus;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static RINGS: Cell<u64> = const { Cell::new(0) };
}

impl Cpus {
    /// The calling thread runs on this one from now on.
    pub(crate) fn run_on(cpu: usize) {
        CPU.set(cpu);
    }

    /// How often the calling thread was told to wake the reporter.
    pub(crate) fn rings() -> u64 {
        RINGS.get()
    }
}

impl Platform for Cpus {
    fn cpu(&self) -> usize {
        CPU.get()
    }

    fn wake_reporter(&self) {
        RINGS.set(RINGS.get() + 1);
    }
}

/// A number from the environment.
pub(crate) fn env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.strip_prefix("0x").map_or(text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Large machines are looked at frame by frame here and there only.
const STEP: usize = if cfg!(hotmem_geometry = "small") { 1 } else { 61 };

/// Everything that can be asked of a machine without changing it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Snapshot {
    blocks: Vec<(State, Counts)>,
    metadata: Vec<Metadata>,
    metadata_reserved: Bytes,
    regions: Vec<(RegionId, PfnRange)>,
    zones: Vec<ZoneInfo>,
    memory_blocks: Vec<MemoryBlock>,
    poisoned: Vec<(Pfn, Poisoned)>,
    free: Vec<u64>,
}

impl Snapshot {
    /// Of the first `size` frames, where `used` are known to be in use. That a frame is free shows
    /// in that it cannot be freed.
    pub(crate) fn of<P: Platform>(hotplug: &Hotplug<'_, P>, size: u64, used: &[PfnRange]) -> Self {
        let frames = hotplug.frames();
        frames.validate().expect("a machine that agrees with itself");
        let metadata: Vec<_> = frames.metadata().collect();
        let state = |b: u64| hotplug.state_at(pfn(b * BLOCK), pfn((b + 1) * BLOCK)).1;
        let taken: BTreeSet<u64> = (used.iter().copied())
            .chain(metadata.iter().map(|metadata| metadata.frames))
            .flat_map(numbers)
            .collect();
        let is_free = |&frame: &u64| {
            !taken.contains(&frame)
                && match frames.free(range(frame, 1)).expect_err("frame that is not in use").kind {
                    FreeErrorKind::NotAllocated => true,
                    FreeErrorKind::Foreign => false,
                    FreeErrorKind::Empty | FreeErrorKind::NotReserved => unreachable!("one frame"),
                }
        };
        let blocks =
            (0..size / BLOCK).map(|b| (state(b), frames.counts_in(range(b * BLOCK, BLOCK))));
        Snapshot {
            blocks: blocks.collect(),
            metadata_reserved: frames.metadata_reserved(),
            regions: hotplug.regions().collect(),
            zones: (0..MAX_NODES)
                .filter_map(NodeId::new)
                .flat_map(|node| Zone::ALL.map(|zone| hotplug.zone(node, zone)))
                .collect(),
            memory_blocks: hotplug.memory_blocks(SECTION).collect(),
            poisoned: hotplug.poisoned().collect(),
            free: (0..size).step_by(STEP).filter(is_free).collect(),
            metadata,
        }
    }
}
