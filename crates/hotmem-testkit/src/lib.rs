//! Support for tests of whole machines: heap memory that stands for physical memory, machines that
//! boot in it, a platform whose threads choose their CPU, and snapshots of a machine's state.
#![cfg(not(loom))]

pub mod link;

use hotmem::{
    AllocError, AllocRequest, Allocation, AlwaysMapped, BootError, BootMap, BootRange, Bytes,
    Counts, DeviceError, Fault, Frames, FreeError, FreeErrorKind, Hooks, Hotplug, Mapping,
    MemoryBlock, Metadata, NoHooks, NodeId, OnlineType, Pfn, PfnRange, Platform, Poisoned,
    RegionId, State, Zone, ZoneInfo, geometry,
};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Frames in a pageblock.
pub const BLOCK: u64 = geometry::PAGEBLOCK_FRAMES as u64;
/// Frames in a section.
pub const SECTION: u64 = geometry::SECTION_FRAMES as u64;
/// A frame far above all memory of the tests.
pub const REMOTE: u64 = geometry::PFN_LIMIT / 4;
/// The longest allocation that fits one word of a frame bitmap.
pub const WORD: u64 = geometry::BITMAP_WORD_BITS as u64;

/// Returns `frames` frames from frame number `start`.
///
/// # Panics
/// Panics if they pass the limit of physical addresses.
#[must_use]
pub fn range(start: u64, frames: u64) -> PfnRange {
    PfnRange::with_len(pfn(start), frames).expect("within the address limit")
}

/// Returns the frame with this number.
///
/// # Panics
/// Panics if the number is beyond the limit of physical addresses.
#[must_use]
pub fn pfn(number: u64) -> Pfn {
    Pfn::new(number).expect("within the address limit")
}

/// Returns the numbers of a range's frames.
#[must_use]
pub fn numbers(range: PfnRange) -> std::ops::Range<u64> {
    range.start().number()..range.end().number()
}

/// Boots a machine with the first `frames` of this memory.
///
/// # Panics
/// Panics if these are too few.
pub fn boot<'f, P: Platform>(
    machine: &'f Frames<P>,
    memory: &Memory,
    frames: u64,
) -> Hotplug<'f, P> {
    let ram = [BootRange { start: 0, len: range(0, frames).bytes() }];
    start(machine, memory.direct_map(), &BootMap::of_ram(&ram)).expect("enough to boot")
}

/// Starts a machine.
///
/// # Errors
/// As [`Hotplug::bootstrap`].
pub fn start<'f, P: Platform, M: Mapping>(
    frames: &'f Frames<P>,
    mapping: M,
    map: &BootMap<'_>,
) -> Result<Hotplug<'f, P, M>, BootError> {
    // SAFETY: each machine of a test has a memory of its own, which exists from the start.
    unsafe { Hotplug::bootstrap(frames, mapping, map) }
}

/// Announces frames, adds them and puts them online for movable allocations.
///
/// # Panics
/// Panics if the machine refuses.
pub fn plug<P: Platform>(hotplug: &mut Hotplug<'_, P>, frames: PfnRange) {
    hotplug.announce(frames).expect("a region that is free");
    hotplug.add(frames).expect("room for its words");
    hotplug.online(frames, OnlineType::Movable, &mut NoHooks).expect("memory that was added");
}

/// Makes the words of an announced range, by preparing an addition and abandoning it. A later
/// addition then allocates none.
///
/// # Panics
/// Panics if the machine refuses.
pub fn make_words<P: Platform, M: Mapping>(hotplug: &mut Hotplug<'_, P, M>, range: PfnRange) {
    drop(hotplug.prepare_add(range).expect("a range that is announced"));
}

/// Allocates frames, so that two pageblocks of boot memory stay divided and have some free, one for
/// single frames and one for runs: frames of bitmaps, words and tables come from there, and leave no
/// other memory divided. Returns what was allocated.
///
/// # Panics
/// If there are not so many.
pub fn divide_a_pageblock<P: Platform>(frames: &Frames<P>) -> Vec<PfnRange> {
    let mut taken = vec![];
    loop {
        taken.push(frames.take_raw(AllocRequest::frames(1)).expect("a free pageblock"));
        let counts = frames.counts();
        if counts.free - counts.free_whole >= 8 {
            break;
        }
    }
    let run = frames.take_raw(AllocRequest::frames(2)).expect("a free pageblock");
    let (kept, rest) = run.split_at(run.start().checked_add(1).expect("the second frame"));
    frames.give_raw(rest).expect("it was allocated");
    taken.push(kept);
    taken
}

/// What a region spans, if there is one.
pub fn region_range<P: Platform, M: Mapping>(
    hotplug: &Hotplug<'_, P, M>,
    region: RegionId,
) -> Option<PfnRange> {
    hotplug.regions().find(|&(id, _)| id == region).map(|(_, range)| range)
}

/// Allocates and frees raw ranges, for tests that keep their own account of owners or that test
/// refusals.
pub trait Raw {
    /// Allocates a range and gives up its owner.
    ///
    /// # Errors
    /// As [`Frames::alloc`].
    fn take_raw(&self, want: AllocRequest) -> Result<PfnRange, AllocError>;
    /// Frees a range.
    ///
    /// # Errors
    /// As [`Frames::free_raw`].
    fn give_raw(&self, range: PfnRange) -> Result<(), FreeError>;
    /// Frees a range after filling it.
    ///
    /// # Errors
    /// As [`Frames::free_raw_filled`].
    fn give_raw_filled(&self, range: PfnRange) -> Result<(), FreeError>;
}

impl<P: Platform> Raw for Frames<P> {
    fn take_raw(&self, want: AllocRequest) -> Result<PfnRange, AllocError> {
        self.alloc(want).map(Allocation::into_raw)
    }

    fn give_raw(&self, range: PfnRange) -> Result<(), FreeError> {
        // SAFETY: a test frees a range that it allocated, or one that must be refused.
        unsafe { self.free_raw(range) }
    }

    fn give_raw_filled(&self, range: PfnRange) -> Result<(), FreeError> {
        // SAFETY: as above.
        unsafe { self.free_raw_filled(range) }
    }
}

/// The unsafe operations on reserved boot memory and device memory, made safe for tests.
pub trait RawReserved {
    /// Detaches device memory.
    ///
    /// # Errors
    /// As [`Hotplug::detach`].
    fn detach_raw(&mut self, range: PfnRange) -> Result<(), DeviceError>;
    /// Turns device memory into RAM.
    ///
    /// # Errors
    /// As [`Hotplug::device_to_ram`].
    fn device_to_ram_raw(
        &mut self,
        range: PfnRange,
        kind: impl Into<Option<OnlineType>>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), DeviceError>;
    /// Frees memory that boot reserved.
    ///
    /// # Errors
    /// As [`Hotplug::free_reserved`].
    fn give_reserved(&mut self, range: PfnRange) -> Result<(), FreeError>;
}

impl<P: Platform, M: Mapping> RawReserved for Hotplug<'_, P, M> {
    fn give_reserved(&mut self, range: PfnRange) -> Result<(), FreeError> {
        // SAFETY: a test frees a range that it reserved, or one that must be refused.
        unsafe { self.free_reserved(range) }
    }

    fn detach_raw(&mut self, range: PfnRange) -> Result<(), DeviceError> {
        // SAFETY: no test uses device memory.
        unsafe { self.detach(range) }
    }

    fn device_to_ram_raw(
        &mut self,
        range: PfnRange,
        kind: impl Into<Option<OnlineType>>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.device_to_ram(range, kind, hooks) }
    }
}

/// Heap memory that stands for physical memory from address 0 up.
pub struct Memory {
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
    /// Allocates `frames` frames of zeros. The host commits a page when it is first touched.
    ///
    /// # Panics
    /// Panics if the process has not enough address space.
    #[must_use]
    pub fn new(frames: u64) -> Memory {
        let bytes = usize::try_from(frames * geometry::FRAME_SIZE).expect("a 64-bit machine");
        // The alignment is done by hand: with a larger alignment the allocator would write the
        // zeros.
        let layout = Layout::from_size_align(bytes + 4096, 1).expect("a size that can be had");
        // SAFETY: the layout is not empty.
        let allocated = unsafe { alloc_zeroed(layout) };
        assert!(!allocated.is_null());
        let base =
            allocated.wrapping_add(allocated.addr().next_multiple_of(4096) - allocated.addr());
        Memory { allocated, layout, base, bytes }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.base
    }

    /// Returns a mapping of all addresses. The machine that uses it must be dropped before this
    /// memory.
    #[must_use]
    pub fn direct_map(&self) -> AlwaysMapped {
        // SAFETY: all of it is readable and writable, and only this type and the engine access it.
        // Memory that is announced beyond it is never added.
        unsafe { AlwaysMapped::new(self.base, PfnRange::ALL) }
    }

    /// Returns a mapping that ends where this memory ends.
    #[must_use]
    pub fn mapping(&self) -> AlwaysMapped {
        let reach = range(0, self.bytes as u64 / geometry::FRAME_SIZE);
        // SAFETY: as above.
        unsafe { AlwaysMapped::new(self.base, reach) }
    }

    /// Returns the first 64-bit word of a frame.
    #[must_use]
    pub fn word(&self, frame: u64) -> &AtomicU64 {
        self.word_at(frame * geometry::FRAME_SIZE)
    }

    /// Returns the 64-bit words of a frame.
    pub fn words(&self, frame: u64) -> impl Iterator<Item = u64> {
        self.cells(frame).map(|word| word.load(Ordering::Relaxed))
    }

    /// Returns the 64-bit words of a frame for changes.
    pub fn cells(&self, frame: u64) -> impl Iterator<Item = &AtomicU64> {
        let addresses =
            (frame * geometry::FRAME_SIZE..(frame + 1) * geometry::FRAME_SIZE).step_by(8);
        addresses.map(|address| self.word_at(address))
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

/// A platform on which each thread chooses its CPU.
#[derive(Default)]
pub struct Cpus;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static RINGS: Cell<u64> = const { Cell::new(0) };
}

impl Cpus {
    /// Makes the calling thread run on this CPU from now on.
    pub fn run_on(cpu: usize) {
        CPU.set(cpu);
    }

    /// Returns how often the engine has woken the reporter from the calling thread.
    #[must_use]
    pub fn rings() -> u64 {
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

/// Returns the number in an environment variable, if it is set.
///
/// # Panics
/// Panics if it is not a number.
#[must_use]
pub fn env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.strip_prefix("0x").map_or(text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Snapshots of large machines ask about every 61st frame only.
const STEP: usize = if cfg!(hotmem_geometry = "small") { 1 } else { 61 };

/// All state of a machine that can be read without changing it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    blocks: Vec<(State, Counts)>,
    metadata: Vec<Metadata>,
    metadata_reserved: Bytes,
    regions: Vec<(RegionId, PfnRange)>,
    zones: Vec<(NodeId, [ZoneInfo; 2])>,
    memory_blocks: Vec<MemoryBlock>,
    poisoned: Vec<(Pfn, Poisoned)>,
    free: Vec<u64>,
}

/// Cross-checks a machine in tests, which know that their other threads are idle.
pub trait Validated {
    /// [`Frames::validate`], while no other thread of the test uses the machine.
    ///
    /// # Errors
    /// The first [`Fault`].
    fn validated(&self) -> Result<Counts, Fault>;
}

impl<P: Platform> Validated for Frames<P> {
    fn validated(&self) -> Result<Counts, Fault> {
        // SAFETY: tests call this when no other call is in progress.
        unsafe { self.validate() }
    }
}

impl Snapshot {
    /// Returns the snapshot without its record of divided pageblocks that are entirely free: an
    /// allocation that is freed at once may leave one divided.
    #[must_use]
    pub fn whatever_is_split(mut self) -> Self {
        self.blocks.iter_mut().for_each(|(_, counts)| counts.free_whole = 0);
        self
    }

    /// Takes a snapshot of the first `size` frames, of which `used` are known to be in use. A frame
    /// counts as free if freeing it is refused.
    ///
    /// # Panics
    /// Panics if the machine's state is inconsistent.
    #[must_use]
    pub fn of<P: Platform, M: Mapping>(
        hotplug: &Hotplug<'_, P, M>,
        size: u64,
        used: &[PfnRange],
    ) -> Self {
        let frames = hotplug.frames();
        frames.validated().expect("a consistent machine");
        let metadata: Vec<_> = frames.metadata().collect();
        let state = |b: u64| hotplug.state_at(pfn(b * BLOCK), pfn((b + 1) * BLOCK)).1;
        let taken: BTreeSet<u64> = (used.iter().copied())
            .chain(metadata.iter().map(|metadata| metadata.frames))
            .flat_map(numbers)
            .collect();
        let is_free = |&frame: &u64| {
            !taken.contains(&frame)
                && match frames
                    .give_raw(range(frame, 1))
                    .expect_err("frame that is not in use")
                    .kind
                {
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
            zones: hotplug
                .nodes()
                .map(|node| (node, Zone::ALL.map(|zone| hotplug.zone(node, zone))))
                .collect(),
            memory_blocks: hotplug.memory_blocks(SECTION).collect(),
            poisoned: hotplug.poisoned().collect(),
            free: (0..size).step_by(STEP).filter(is_free).collect(),
            metadata,
        }
    }
}

/// The example in the README of the engine, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../hotmem/README.md")]
struct Readme;
