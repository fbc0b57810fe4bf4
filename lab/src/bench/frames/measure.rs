//! Measures one case. Does not access allocated frames.
//!
//! Hotmem's frame bitmaps lie in boot memory, as in a kernel that has been running for a while.

use super::access_pattern::AccessPattern;
use super::case::Case;
use super::many_frames::{Limit, PerThread};
use super::subject::{Allocator, BITMAP_1T, BITMAP_64G, Bitmap, Buddy, OnNodes, Subject};
use super::traffic::{self, cpu_time, nanoseconds};
use crate::hosted::{Hosted, ThreadCpus};
use anyhow::{Context, Result};
use bitmap_allocator::{BitAlloc, BitAlloc16M};
use hotmem::{
    AddRequest, AllocRequest, Bytes, Frames, NoHooks, NodeId, OnlineType,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES},
};
use std::thread;

/// The number of nodes that allocations name.
const NODES: u32 = 4;
/// The amount of memory after which the node changes, in patterns whose nodes alternate.
const ALTERNATION_SIZE: Bytes = Bytes::mib(256);

impl Case {
    /// Returns the nanoseconds of CPU time of an operation, or of the whole start.
    ///
    /// If `unbacked` is set, reserves no addresses for plugged memory, because the process has too
    /// few.
    pub(super) fn measure(&self, operations: u64, unbacked: bool) -> Result<f64> {
        let frames = usize::try_from(self.size.0 / FRAME_SIZE)?;
        match self.subject {
            Subject::Hotmem if self.access == AccessPattern::Init => boot_with(self.size),
            Subject::Hotmem
            | Subject::HotmemMagazine
            | Subject::HotmemCpuMagazine
            | Subject::HotmemBatches => self.measure_hotmem(operations, unbacked),
            Subject::Limit => traffic::measure(&Limit, 0, self, operations),
            Subject::BuddySystemAllocator => self.measure_peer(operations, || Buddy::new(frames)),
            Subject::BitmapAllocator if frames <= BitAlloc16M::CAP => {
                self.measure_peer(operations, || Bitmap::new(&BITMAP_64G, frames))
            }
            Subject::BitmapAllocator => {
                self.measure_peer(operations, || Bitmap::new(&BITMAP_1T, frames))
            }
        }
    }

    fn measure_peer<A: Allocator>(&self, operations: u64, new: impl FnOnce() -> A) -> Result<f64> {
        let started = cpu_time();
        let allocator = new();
        let init = cpu_time() - started;
        if self.access.is_start() {
            return Ok(nanoseconds(init));
        }
        traffic::measure(&allocator, 0, self, operations)
    }

    fn measure_hotmem(&self, operations: u64, unbacked: bool) -> Result<f64> {
        let sections = self.size.0 / FRAME_SIZE / SECTION_FRAMES as u64;
        // Boot memory has a frame of bitmaps and 512 bytes of words for each plugged section, and
        // 64 MiB for its own words.
        let boot_memory = Bytes(sections * (FRAME_SIZE + 512)).0.next_multiple_of(2 << 20);
        let boot_memory = Bytes(boot_memory + Bytes::mib(64).0);
        let builder = Hosted::builder().boot_memory(boot_memory).hotplug_size(self.size);
        // Bitmaps may lie in plugged kernel memory, so the memory must be backed if there is any.
        let without_movable = self.access.is_without_movable();
        let builder = if unbacked && !without_movable {
            // SAFETY: the bench accesses no plugged frame. The engine accesses none either, because
            // `divide_boot_memory` leaves enough free frames in boot memory for the bitmaps of all
            // plugged sections.
            unsafe { builder.unbacked() }
        } else {
            builder
        };
        let machine = builder.build()?;
        let mut hotplug = machine.boot()?;
        let started = cpu_time();
        hotplug.announce(machine.hotplug_range())?;
        if self.access == AccessPattern::Announce {
            return Ok(nanoseconds(cpu_time() - started));
        }
        if !self.access.is_start() {
            divide_boot_memory(&machine);
        }
        match self.access.nodes() {
            None => hotplug.add(machine.hotplug_range())?,
            Some(named_nodes) => {
                let range = machine.hotplug_range();
                let part_frames = if named_nodes.is_alternating {
                    ALTERNATION_SIZE.frames()
                } else {
                    range.frames() / u64::from(NODES)
                };
                for (nth, part) in (0..).zip(range.chunks(part_frames)) {
                    hotplug.add(AddRequest { node: Some(NodeId(nth % NODES)), ..part.into() })?;
                }
            }
        }
        let kind = if without_movable { OnlineType::Kernel } else { OnlineType::Movable };
        hotplug.online(machine.hotplug_range(), kind, &mut NoHooks)?;
        if self.access == AccessPattern::PairWithoutMovable64Cpus {
            allocate_on_cpus(machine.frames(), 64)?;
        }
        if self.access == AccessPattern::AnnounceAddOnline {
            return Ok(nanoseconds(cpu_time() - started));
        }
        let first = machine.hotplug_range().start().number();
        match self.access.nodes() {
            None => match self.subject {
                Subject::HotmemMagazine => traffic::measure(
                    &PerThread::magazines(machine.frames()),
                    first,
                    self,
                    operations,
                ),
                Subject::HotmemCpuMagazine => traffic::measure(
                    &PerThread::cpu_magazines(machine.frames()),
                    first,
                    self,
                    operations,
                ),
                Subject::HotmemBatches => {
                    traffic::measure(&PerThread::batches(machine.frames()), first, self, operations)
                }
                _ => traffic::measure(machine.frames(), first, self, operations),
            },
            Some(named_nodes) => {
                let nodes = OnNodes::new(machine.frames(), NODES, named_nodes.refuses_other_nodes);
                traffic::measure(&nodes, first, self, operations)
            }
        }
    }
}

/// Boots a machine with `size` bytes of boot memory, and returns the nanoseconds of CPU time.
fn boot_with(size: Bytes) -> Result<f64> {
    let machine = Hosted::builder().boot_memory(size).build()?;
    let started = cpu_time();
    let _hotplug = machine.boot()?;
    Ok(nanoseconds(cpu_time() - started))
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
