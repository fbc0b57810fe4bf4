//! The engine, in a hosted machine whose memory was plugged.
//!
//! The frame bitmaps lie in boot memory, as in a kernel that has been running for a while.

use crate::bench::frames::access::Access;
use crate::bench::frames::allocator::{Allocator, ThreadState};
use crate::bench::frames::case::Case;
use crate::bench::frames::length::Length;
use crate::bench::frames::place::{LOW_SIZE, Nodes};
use crate::bench::frames::state::State;
use crate::hosted::{Hosted, ThreadCpus};
use anyhow::{Context, Result};
use hotmem::{
    AddRequest, AllocRequest, Bytes, Frames, NoHooks, NodeChoice, NodeId, OnlineType, Pfn,
    PfnRange,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES},
};
use std::ops::Range;
use std::thread;

/// The amount of memory after which the node changes, where nodes alternate.
const ALTERNATION_SIZE: Bytes = Bytes::mib(256);

/// Returns why the engine cannot do a case.
pub(in crate::bench) fn cannot(case: &Case) -> Option<&'static str> {
    // The kernel memory that is plugged must be present, because bitmaps may lie in it.
    let is_large = case.state.is_without_movable() && case.size > Bytes::gib(16);
    is_large.then_some("the host has too little memory")
}

/// Returns a machine with the memory of a case, which lies at the hotplug range and is not plugged.
pub(in crate::bench) fn machine(case: &Case) -> Result<Hosted> {
    let sections = case.size.0 / FRAME_SIZE / SECTION_FRAMES as u64;
    // Boot memory has two frames of bitmaps and 512 bytes of words for each plugged section, and
    // 64 MiB for its own words.
    let boot_memory = Bytes(sections * (2 * FRAME_SIZE + 512)).0.next_multiple_of(2 << 20);
    let boot_memory = Bytes(boot_memory + Bytes::mib(64).0);
    let builder = Hosted::builder().boot_memory(boot_memory).hotplug_size(case.size);
    let builder = if case.state.is_without_movable() {
        builder
    } else {
        // SAFETY: the bench accesses no plugged frame. The engine accesses none either, because
        // `divide_boot_memory` leaves enough free frames in boot memory for the bitmaps of all
        // plugged sections.
        unsafe { builder.unbacked() }
    };
    Ok(builder.build()?)
}

/// Plugs the memory of a case, for movable memory, and calls `run` with the allocator and the first
/// frame. Returns the result of `run`, or the nanoseconds of CPU time if the case is a start.
pub(in crate::bench) fn plug(
    case: &Case,
    machine: &Hosted,
    time: impl Fn() -> f64,
    run: impl FnOnce(&Frames<ThreadCpus>, u64) -> Result<f64>,
) -> Result<f64> {
    let mut hotplug = machine.boot()?;
    let range = machine.hotplug_range();
    let started = time();
    hotplug.announce(range)?;
    if case.access == Access::Announce {
        return Ok(time() - started);
    }
    if !case.access.is_start() {
        divide_boot_memory(machine);
    }
    match case.place.nodes() {
        None => hotplug.add(range)?,
        Some(Nodes { count, is_alternating, .. }) => {
            let part_frames = match is_alternating {
                true => ALTERNATION_SIZE.frames(),
                false => range.frames() / u64::from(count),
            };
            for (nth, part) in (0..).zip(range.chunks(part_frames)) {
                hotplug.add(AddRequest { node: Some(NodeId(nth % count)), ..part.into() })?;
            }
        }
    }
    let kind =
        if case.state.is_without_movable() { OnlineType::Kernel } else { OnlineType::Movable };
    hotplug.online(range, kind, &mut NoHooks)?;
    if case.access == Access::AnnounceAddOnline {
        return Ok(time() - started);
    }
    if case.state == State::WithoutMovable64Cpus {
        allocate_on_cpus(machine.frames(), 64)?;
    }
    run(machine.frames(), range.start().number())
}

/// Boots a machine with `size` bytes of boot memory. Returns the nanoseconds of CPU time.
pub(in crate::bench) fn boot(size: Bytes, time: impl Fn() -> f64) -> Result<f64> {
    let machine = Hosted::builder().boot_memory(size).build()?;
    let started = time();
    let _hotplug = machine.boot()?;
    Ok(time() - started)
}

/// Divides all pageblocks of boot memory, and leaves one frame of each in use, as in a kernel that
/// has been running for a while.
fn divide_boot_memory(machine: &Hosted) {
    let frames = std::iter::from_fn(|| machine.frames().alloc(AllocRequest::frames(1)).ok());
    // Allocate all frames before the first is freed.
    let frames: Vec<_> = frames.collect();
    for frame in frames {
        if frame.range().start().number().is_multiple_of(PAGEBLOCK_FRAMES as u64) {
            let _stays = frame.into_raw();
        }
    }
}

/// Allocates and frees a frame on each of `cpus` CPUs, so that the engine has a hint for each CPU.
fn allocate_on_cpus(frames: &Frames<ThreadCpus>, cpus: usize) -> Result<()> {
    let pair = || -> Result<()> {
        drop(frames.alloc(AllocRequest::frames(1)).context("allocating on another CPU")?);
        Ok(())
    };
    for _ in 0..cpus {
        thread::scope(|scope| scope.spawn(pair).join().expect("an allocating thread panicked"))?;
    }
    Ok(())
}

/// Returns the request for movable memory of a length. A single frame is not aligned by the request,
/// as in a kernel that asks for a frame.
#[inline(always)]
const fn request(length: Length) -> AllocRequest {
    match length {
        Length::Order(0) => AllocRequest::frames(1).movable(),
        Length::Order(order) => AllocRequest::order(order).movable(),
        Length::Frames(frames) => AllocRequest::frames(frames).movable(),
    }
}

/// Makes a request. Returns the number of the first frame.
#[inline(always)]
fn alloc(frames: &Frames<ThreadCpus>, request: AllocRequest) -> Option<u64> {
    Some(Frames::alloc(frames, request).ok()?.into_raw().start().number())
}

/// Frees a part of each pageblock, and allocates it again. The first free of a part divides a pageblock
/// that is allocated as a whole: where memory has been used at random, none is left.
fn divide_all(frames: &Frames<ThreadCpus>, allocated: Range<u64>, part: Length) {
    for pageblock in allocated.step_by(PAGEBLOCK_FRAMES) {
        Allocator::free(frames, pageblock, part);
        let again = Allocator::alloc(frames, part);
        assert_eq!(again, Some(pageblock), "nothing else is free");
    }
}

impl Allocator for Frames<ThreadCpus> {
    type ThreadState<'a> = &'a Self;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline(always)]
    fn alloc(&self, length: Length) -> Option<u64> {
        alloc(self, request(length))
    }

    #[inline(always)]
    fn free(&self, frame: u64, length: Length) {
        let start = Pfn::new(frame);
        let run = start.and_then(|start| PfnRange::with_len(start, length.frames()));
        // SAFETY: the bench frees only frames that it has allocated, and each once.
        let freed = unsafe { self.free_raw(run.expect("the run is a part of an allocation")) };
        assert_eq!(freed, Ok(()));
    }

    fn allocate_all(&self, part: Length) {
        // 1 GiB and 2 MiB. Single frames would be of boot memory, where the bitmaps will lie.
        let mut allocated = Vec::new();
        for order in [18, 9] {
            while let Some(start) = alloc(self, AllocRequest::order(order).movable()) {
                allocated.push(start..start + (1 << order));
            }
        }
        if part.frames() < PAGEBLOCK_FRAMES as u64 {
            allocated.into_iter().for_each(|range| divide_all(self, range, part));
        }
    }
}

/// The engine, where each thread asks for memory of the nodes in turn.
pub(in crate::bench) struct OnNodes<'f> {
    pub(in crate::bench) frames: &'f Frames<ThreadCpus>,
    pub(in crate::bench) nodes: Nodes,
}

/// The state of a thread, and the node that it asks for next.
pub(in crate::bench) struct NextNode<'a> {
    frames: &'a Frames<ThreadCpus>,
    nodes: Nodes,
    next: u32,
}

impl Allocator for OnNodes<'_> {
    type ThreadState<'a>
        = NextNode<'a>
    where
        Self: 'a;

    fn thread_state(&self) -> NextNode<'_> {
        NextNode { frames: self.frames, nodes: self.nodes, next: 0 }
    }

    fn alloc(&self, length: Length) -> Option<u64> {
        Allocator::alloc(self.frames, length)
    }

    fn free(&self, frame: u64, length: Length) {
        Allocator::free(self.frames, frame, length);
    }

    fn allocate_all(&self, part: Length) {
        self.frames.allocate_all(part);
    }
}

impl ThreadState for NextNode<'_> {
    #[inline(always)]
    fn alloc(&mut self, length: Length) -> Option<u64> {
        let node = NodeId(self.next);
        self.next = if self.next + 1 == self.nodes.count { 0 } else { self.next + 1 };
        let choice = match self.nodes.refuses_others {
            true => NodeChoice::Only(node),
            false => NodeChoice::Near(node),
        };
        alloc(self.frames, request(length).node(choice))
    }

    #[inline(always)]
    fn free(&mut self, frame: u64, length: Length) {
        Allocator::free(self.frames, frame, length);
    }
}

/// The engine, of which only low memory is asked for.
pub(in crate::bench) struct InLowMemory<'f> {
    frames: &'f Frames<ThreadCpus>,
    low: PfnRange,
}

impl InLowMemory<'_> {
    /// Makes an allocator of the memory from frame `first` on.
    pub(in crate::bench) fn new(
        frames: &Frames<ThreadCpus>,
        first: u64,
    ) -> Result<InLowMemory<'_>> {
        let start = Pfn::new(first);
        let low = start.and_then(|start| PfnRange::with_len(start, LOW_SIZE.frames()));
        Ok(InLowMemory { frames, low: low.context("low memory has no frame numbers")? })
    }
}

impl Allocator for InLowMemory<'_> {
    type ThreadState<'a>
        = &'a Self
    where
        Self: 'a;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline(always)]
    fn alloc(&self, length: Length) -> Option<u64> {
        alloc(self.frames, request(length).within(self.low.start()..self.low.end()))
    }

    #[inline(always)]
    fn free(&self, frame: u64, length: Length) {
        Allocator::free(self.frames, frame, length);
    }

    fn allocate_all(&self, part: Length) {
        self.frames.allocate_all(part);
    }
}
