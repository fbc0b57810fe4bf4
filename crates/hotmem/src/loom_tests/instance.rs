//! Defines the instance of a model. It has a few frames, and is made anew for each execution.

use super::boxes::Boxes;
use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, Frames, frames_of_bitmaps};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK};
use crate::hooks::NoHooks;
use crate::hotplug::{Hotplug, OnlineType};
use crate::mapping::AlwaysMapped;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::sync::{Ordering, begin_thread, untracked};
use crate::words::DirectMap;
use crate::words::{BitmapFrame, LongShape, NodeId, SectionRef, Zeroed, Zone};
use loom::thread;
use std::cell::Cell;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;
use std::{boxed::Box, vec, vec::Vec};

/// The number of frames in a pageblock.
pub(super) const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;
/// The number of frames in a section.
pub(super) const SECTION: u64 = SECTION_FRAMES as u64;
pub(super) const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
pub(super) const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

loom::thread_local! { static CPU: Cell<usize> = Cell::new(0); }

/// A platform on which each thread of a model chooses the CPU that it runs on.
pub(super) struct LoomPlatform;

impl Platform for LoomPlatform {
    fn cpu(&self) -> usize {
        CPU.with(Cell::get)
    }
}

/// An instance with a few frames, and a record of the frames that the scenario holds.
pub(super) struct Instance {
    frames: Frames<LoomPlatform>,
    _words: Boxes,
    memory: Box<[BitmapFrame]>,
    /// A bit for each frame that the scenario holds. This is not one of loom's atomics, so it
    /// orders no accesses.
    held: untracked::AtomicU64,
    /// The number of threads that have been created.
    threads: untracked::AtomicUsize,
    /// The number of frames of RAM.
    len: u64,
}

/// Frames that the scenario holds.
#[must_use]
#[derive(Debug)]
pub(super) struct Held(PfnRange);

impl Held {
    pub(super) fn range(&self) -> PfnRange {
        self.0
    }
}

impl Deref for Instance {
    type Target = Frames<LoomPlatform>;
    fn deref(&self) -> &Frames<LoomPlatform> {
        &self.frames
    }
}

pub(super) fn range(start: u64, frames: u64) -> PfnRange {
    Pfn::new(start).and_then(|start| PfnRange::with_len(start, frames)).unwrap()
}

impl Instance {
    /// Makes an instance of `sections` sections of free kernel memory. The bitmaps lie outside this
    /// memory.
    pub(super) fn new(sections: usize) -> Arc<Instance> {
        let instance = Instance::without_bitmaps(sections);
        (0..sections).for_each(|index| assert!(instance.add_lasting_bitmaps(index)));
        instance
    }

    /// Makes an instance as [`new`](Self::new) does, of which the first `low` sections are low
    /// memory.
    pub(super) fn with_low_memory(sections: usize, low: usize) -> Arc<Instance> {
        let instance = Instance::with_memory(sections, false, low);
        (0..sections).for_each(|index| assert!(instance.add_lasting_bitmaps(index)));
        instance
    }

    /// Returns section `index`.
    pub(super) fn section(&self, index: usize) -> SectionRef<'_> {
        self.words().section_of(Pfn::new(index as u64 * SECTION).unwrap()).unwrap()
    }

    /// Makes an instance as [`new`](Self::new) does, which can have a reporter.
    pub(super) fn with_reporter(sections: usize) -> Arc<Instance> {
        let instance = Instance::new(sections);
        instance.wakeup().model();
        instance
    }

    /// Installs bitmaps of section `index` that lie outside its memory. Returns false if the section
    /// has bitmaps already.
    pub(super) fn add_lasting_bitmaps(&self, index: usize) -> bool {
        let frame = Pfn::new(self.len + index as u64).unwrap();
        self.call().install_bitmaps(self.section(index), 0, frame, false)
    }

    /// Makes an instance of hotplugged memory without bitmaps. The CPU that first divides a
    /// pageblock of a section must find a frame for the bitmaps.
    pub(super) fn without_bitmaps(sections: usize) -> Arc<Instance> {
        Instance::with_memory(sections, false, 0)
    }

    /// Makes an instance of boot memory without bitmaps.
    pub(super) fn boot_without_bitmaps(sections: usize) -> Arc<Instance> {
        Instance::with_memory(sections, true, 0)
    }

    fn with_memory(sections: usize, is_boot: bool, low: usize) -> Arc<Instance> {
        let len = sections as u64 * SECTION;
        let memory = (0..len + sections as u64).map(|_| BitmapFrame::new());
        let memory: Box<[BitmapFrame]> = memory.collect();
        let frames = Frames::new(LoomPlatform);
        // The memory of each frame of the model is an element of `memory`.
        frames.set_direct_map(DirectMap::from_base(memory.as_ptr().cast_mut().cast()));
        frames.call().set_low_end(Pfn::new(low as u64 * SECTION).unwrap());
        let mut words = Boxes::default();
        frames.words().announce_model(range(0, len), is_boot, &mut words, Boxes::keep);
        let held = untracked::AtomicU64::new(0);
        let threads = untracked::AtomicUsize::new(1);
        // SAFETY: the scenarios promise only what they have zeroed.
        unsafe { frames.keep_zero_marks() };
        let instance = Arc::new(Instance { frames, _words: words, memory, held, threads, len });
        for index in 0..sections {
            instance.section(index).present.store(SECTION_MASK, Ordering::Relaxed);
        }
        instance.online(range(0, len), OnlineType::Kernel);
        instance
    }

    /// Returns a new control path of the instance.
    pub(super) fn hotplug(&self) -> Hotplug<'_, LoomPlatform> {
        // SAFETY: all memory of the model is mapped, and no memory is added.
        let mapping = unsafe { AlwaysMapped::new(null_mut(), PfnRange::EMPTY) };
        Hotplug::without_memory(&self.frames, mapping)
    }

    /// Puts memory that is present online.
    pub(super) fn online(&self, range: PfnRange, kind: OnlineType) {
        let mut hotplug = self.hotplug();
        hotplug.online(range, kind, &mut NoHooks).unwrap();
    }

    /// Takes memory offline, if no frame of it is in use. Returns whether the memory is offline.
    pub(super) fn take_offline(&self, range: PfnRange) -> bool {
        let Ok(token) = self.call().isolate_range(range) else { return false };
        let left = token.leave_allocator().map_err(|(token, _)| token.release());
        left.map(|range| self.call().clear_held(range)).is_ok()
    }

    /// Runs `work` on another thread, on CPU `cpu`.
    pub(super) fn spawn_on<T: 'static>(
        self: &Arc<Self>,
        cpu: usize,
        work: impl FnOnce(&Instance) -> T + 'static,
    ) -> thread::JoinHandle<T> {
        let instance = self.clone();
        let number = self.threads.fetch_add(1, Ordering::Relaxed);
        thread::spawn(move || {
            begin_thread(number);
            CPU.with(|number| number.set(cpu));
            work(&instance)
        })
    }

    /// Runs `work` on this thread, as CPU `cpu`.
    pub(super) fn run_as<T>(&self, cpu: usize, work: impl FnOnce(&Instance) -> T) -> T {
        let before = CPU.with(|number| number.replace(cpu));
        let done = work(self);
        CPU.with(|number| number.set(before));
        done
    }

    /// Allocates frames, checks that they are zero if the engine says so, and writes to each of them.
    pub(super) fn try_alloc(&self, request: AllocRequest) -> Result<Held, AllocError> {
        let (range, is_zero) = self.frames.alloc_range_with_mark(request)?;
        assert!(!is_zero || self.is_zero(range), "{range} is said to be zero, and is not");
        Ok(self.record_held(range))
    }

    /// Allocates frames that must be known to be zero.
    pub(super) fn alloc_known_zero(&self, request: AllocRequest) -> Held {
        let (range, is_zero) = self.frames.alloc_range_with_mark(request).unwrap();
        assert!(is_zero, "{range} is not known to be zero");
        assert!(self.is_zero(range));
        self.record_held(range)
    }

    /// Makes pageblock `bit` of the first section zero, as the host does with reported memory. Returns
    /// false if it is not free.
    pub(super) fn zero_block(&self, bit: usize) -> bool {
        let (section, mask, call) = (self.section(0), 1 << bit, self.frames.call());
        call.start_hiding();
        if call.claim_all(section, mask).is_none() {
            return false;
        }
        self.discard(range(bit as u64 * BLOCK, BLOCK));
        section.mark_zeroed(Zeroed::known(mask));
        call.publish_blocks(section, mask);
        true
    }

    /// Makes frames zero that the host has, as their owner: writes to each of them.
    pub(super) fn discard(&self, range: PfnRange) {
        self.memory_of(range).for_each(BitmapFrame::zero);
    }

    fn is_zero(&self, range: PfnRange) -> bool {
        self.memory_of(range).all(BitmapFrame::is_zero)
    }

    fn memory_of(&self, range: PfnRange) -> impl Iterator<Item = &BitmapFrame> {
        let frames = range.start().number()..range.end().number();
        frames.map(|pfn| &self.memory[usize::try_from(pfn).unwrap()])
    }

    /// Allocates a long run by the fast path, and writes to each of its frames.
    pub(super) fn try_alloc_at_hint(&self, frames: u64) -> Option<Held> {
        let start = self.frames.alloc_long_run(Zone::Kernel, LongShape::new(frames, 1).unwrap())?;
        Some(self.record_held(range(start.number(), frames)))
    }

    /// Allocates one frame by the fast path for requests near a node, and writes to it.
    pub(super) fn try_alloc_at_node_cursor(&self, node: NodeId) -> Option<Held> {
        let start = self.frames.take_frame_near(node, Zone::Kernel)?;
        Some(self.record_held(range(start.number(), 1)))
    }

    /// Records that the scenario holds `range`, and writes to each of its frames.
    fn record_held(&self, range: PfnRange) -> Held {
        assert!(range.end().number() <= self.len, "{range} is not memory of the instance");
        let mask = frame_mask(range);
        let before = self.held.fetch_or(mask, Ordering::Relaxed);
        assert_eq!(before & mask, 0, "a frame of {range} was allocated twice");
        self.overwrite(range);
        Held(range)
    }

    /// Allocates frames. Panics if the allocation fails.
    pub(super) fn alloc(&self, request: AllocRequest) -> Held {
        self.try_alloc(request).unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    /// Allocates frames, or returns `None` if the allocation fails as "busy". Panics if it fails
    /// otherwise.
    pub(super) fn alloc_unless_busy(&self, request: AllocRequest) -> Option<Held> {
        let held = self.try_alloc(request);
        held.map_err(|error| assert_eq!(error, AllocError::Busy, "{request:?}")).ok()
    }

    /// Allocates `N` single frames.
    pub(super) fn alloc_singles<const N: usize>(&self) -> [Held; N] {
        std::array::from_fn(|_| self.alloc(ONE_FRAME))
    }

    /// Allocates the second pageblock as a whole, so that only the first pageblock is free.
    pub(super) fn alloc_second_block(&self) -> Held {
        self.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()))
    }

    /// Makes an allocation on this thread while another thread, on CPU `other_cpu`, makes another
    /// one. Checks the instance, and frees both.
    pub(super) fn race_allocations(
        self: &Arc<Self>,
        request: AllocRequest,
        other_cpu: usize,
        other_request: AllocRequest,
    ) {
        let other_thread = self.spawn_on(other_cpu, move |instance| instance.alloc(other_request));
        let main_held = self.alloc(request);
        let other_held = other_thread.join().unwrap();
        self.check();
        self.free(main_held);
        self.free(other_held);
    }

    /// Allocates up to `n` single frames by one call, and writes to each of them.
    pub(super) fn alloc_many(&self, request: AllocRequest, n: usize) -> Vec<Held> {
        let mut frames = vec![Pfn::ZERO; n];
        let filled = self.frames.alloc_many(request, &mut frames).unwrap();
        let frames = frames.into_iter().take(filled).map(|frame| range(frame.number(), 1));
        frames.map(|frame| self.record_held(frame)).collect()
    }

    /// Writes to each frame once more, and frees all frames by one call.
    pub(super) fn free_many(&self, held: impl IntoIterator<Item = Held>) {
        let frames = held.into_iter().map(|Held(frame)| {
            self.overwrite(frame);
            self.held.fetch_and(!frame_mask(frame), Ordering::Relaxed);
            frame.start()
        });
        let frames: Vec<Pfn> = frames.collect();
        // SAFETY: the scenario has allocated these frames, and no longer uses them.
        unsafe { self.frames.free_many(&frames) }.unwrap();
    }

    /// Writes to each frame once more, and frees the frames.
    pub(super) fn free(&self, held: Held) {
        self.overwrite(held.0);
        self.held.fetch_and(!frame_mask(held.0), Ordering::Relaxed);
        self.frames.free_range(held.0).unwrap();
    }

    /// Frees frames that the host has made zero since the scenario has written to them.
    pub(super) fn free_zeroed(&self, held: Held) {
        assert!(self.is_zero(held.0));
        self.held.fetch_and(!frame_mask(held.0), Ordering::Relaxed);
        self.frames.free_zeroed(held.0).unwrap();
    }

    /// Frees `range`, whether or not the scenario holds it.
    pub(super) fn try_free(&self, range: PfnRange) -> Result<(), RangeError> {
        self.frames.free_range(range)
    }

    /// Records that the scenario no longer holds frames that were freed by
    /// [`try_free`](Self::try_free).
    pub(super) fn forget_held(&self, held: Held) {
        self.held.fetch_and(!frame_mask(held.0), Ordering::Relaxed);
    }

    /// Divides held frames into the first `frames` and the others.
    pub(super) fn split(&self, held: Held, frames: u64) -> (Held, Held) {
        let (low, high) = held.0.split_at(held.0.start().checked_add(frames).unwrap());
        (Held(low), Held(high))
    }

    /// Checks that the scenario holds no frame, and that all memory can be allocated, in pageblocks
    /// and in frames.
    pub(super) fn check_empty(&self) {
        assert_eq!(self.held.load(Ordering::Relaxed), 0, "the scenario still holds frames");
        self.validate();
        let blocks =
            (0..self.len / BLOCK).map(|_| self.alloc(AllocRequest::frames(BLOCK).movable()));
        blocks.collect::<Vec<_>>().into_iter().for_each(|held| self.free(held));
        self.check();
    }

    pub(super) fn validate(&self) {
        // SAFETY: models call this while no operation is in flight.
        if let Err(fault) = unsafe { self.frames.validate() } {
            panic!("{fault}");
        }
    }

    pub(super) fn overwrite(&self, range: PfnRange) {
        self.memory_of(range).for_each(BitmapFrame::overwrite);
    }

    /// Checks, while no operation is in flight, that the metadata is consistent, that no frame is
    /// lost, and that every free frame can be allocated and freed again.
    pub(super) fn check(&self) {
        self.validate();
        let mut free_frames = Vec::new();
        loop {
            match self.try_alloc(AllocRequest::frames(1).movable()) {
                Ok(held) => free_frames.push(held),
                Err(AllocError::OutOfMemory) => break,
                Err(error) => {
                    panic!("no operation is in flight, so an allocation must not fail as: {error}")
                }
            }
        }
        let bitmaps = self
            .words()
            .sections()
            .flat_map(|section| frames_of_bitmaps(section, self.direct_map()))
            .filter(|(frame, ..)| frame.number() < self.len);
        let in_use = u64::from(self.held.load(Ordering::Relaxed).count_ones());
        assert_eq!(in_use + bitmaps.count() as u64, self.len, "frames are lost");
        free_frames.into_iter().for_each(|held| self.free(held));
        self.validate();
    }
}

fn frame_mask(range: PfnRange) -> u64 {
    (range.start().number()..range.end().number()).fold(0, |mask, pfn| mask | 1 << pfn)
}
