//! Runs `page_fault1` on threads of this process, with the memory of a hosted machine.

use super::super::subject::Subject;
use super::{BurstCosts, NODES, Plan, WORKING_SET};
use crate::hosted::{Hosted, ThreadCpus};
use anyhow::Result;
use hotmem::{
    AllocRequest, Announce, Bytes, NoHooks, NodeId, OnlineType, PfnRange,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES},
    report::{ReporterSettings, Statistics},
};
use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// What a thread does with an allocated frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum FrameUse {
    /// Clears the frame.
    Clear,
    /// Writes the first byte of the frame. Counts of instructions use this, because clearing takes
    /// ten times as many instructions as the allocator.
    Touch,
}

/// Runs the plan and measures it. The caller's thread is the first thread.
pub(in super::super) fn measure(
    subject: Subject,
    plan: Plan,
    frame_use: FrameUse,
) -> Result<BurstCosts> {
    let node_size = plan.node_size();
    let machine = Hosted::builder().hotplug_size(Bytes(NODES * node_size.0)).build()?;
    let mut hotplug = machine.boot()?;
    for (number, memory) in (0..).zip(machine.hotplug_range().chunks(node_size.frames())) {
        hotplug.announce(Announce { node: NodeId(number), ..memory.into() })?;
        hotplug.add(memory)?;
        hotplug.online(memory, OnlineType::Movable, &mut NoHooks)?;
    }
    // Write to all memory, so that the host has allocated it.
    let pageblocks: Vec<_> = core::iter::from_fn(|| {
        machine.frames().alloc(AllocRequest::frames(PAGEBLOCK_FRAMES as u64).movable()).ok()
    })
    .collect();
    for pageblock in pageblocks {
        clear(&machine, pageblock.range());
        drop(pageblock);
    }
    let costs = if subject == Subject::NoReporting {
        run_threads(&machine, plan, frame_use, Statistics::default)?
    } else {
        let reporter = machine.reporter(ReporterSettings::default())?;
        thread::scope(|scope| {
            let _running = reporter.start(scope);
            run_threads(&machine, plan, frame_use, || reporter.statistics())
        })?
    };
    costs.check(subject, plan)?;
    Ok(costs)
}

/// Runs all threads, and measures their bursts. `statistics` returns the current statistics of the
/// reporter.
fn run_threads(
    machine: &Hosted,
    plan: Plan,
    frame_use: FrameUse,
    statistics: impl Fn() -> Statistics + Sync,
) -> Result<BurstCosts> {
    let barrier = Barrier::new(usize::from(plan.threads));
    let run_thread = |number: u16| -> Result<(Duration, Statistics)> {
        let node = u64::from(number) % NODES;
        ThreadCpus::run_on(NodeId(u32::try_from(node)?));
        let mut held = Vec::with_capacity(usize::try_from(WORKING_SET.frames())?);
        let mut burst =
            || (0..plan.rounds).try_for_each(|_| run_round(machine, frame_use, &mut held));
        // Wait for the other threads even if the burst failed, because they wait for this thread.
        let first_burst = burst();
        barrier.wait();
        first_burst?;
        let before = statistics();
        // Threads take turns: while one runs a burst, the memory that another has freed is
        // reported.
        thread::sleep(plan.rest_time * u32::from(number) / u32::from(plan.threads));
        let mut burst_time = Duration::ZERO;
        for _ in 0..plan.bursts {
            thread::sleep(plan.rest_time);
            let started = Instant::now();
            burst()?;
            burst_time += started.elapsed();
        }
        Ok((burst_time, before))
    };
    thread::scope(|scope| {
        let run_thread = &run_thread;
        let other_threads: Vec<_> =
            (1..plan.threads).map(|number| scope.spawn(move || run_thread(number))).collect();
        let (mut burst_time, before) = run_thread(0)?;
        for thread in other_threads {
            burst_time += thread.join().expect("a measuring thread panicked")?.0;
        }
        let after = statistics();
        let bytes = |after: u64, before: u64| {
            Bytes((after - before) * PAGEBLOCK_FRAMES as u64 * FRAME_SIZE)
        };
        Ok(BurstCosts {
            frames: plan.frames(),
            burst_time,
            threads: plan.threads,
            reported: bytes(after.reported, before.reported),
            refaulted: bytes(after.refaulted, before.refaulted),
        })
    })
}

/// Allocates and uses the working set of a thread, and frees it.
fn run_round(machine: &Hosted, frame_use: FrameUse, held: &mut Vec<PfnRange>) -> Result<()> {
    let frames = machine.frames();
    for _ in 0..WORKING_SET.frames() {
        let frame = frames.alloc(AllocRequest::frames(1).movable())?.into_raw();
        match frame_use {
            FrameUse::Clear => clear(machine, frame),
            FrameUse::Touch => touch(machine, frame),
        }
        held.push(frame);
    }
    // SAFETY: the frames in `held` were allocated above, and each is freed once.
    held.drain(..).try_for_each(|frame| unsafe { frames.free_raw(frame) })?;
    Ok(())
}

/// Writes to a frame that the caller holds, so that the host allocates memory for the frame.
fn touch(machine: &Hosted, frame: PfnRange) {
    if let Some(address) = machine.address_of(frame.start()) {
        // SAFETY: the caller holds the frame, so nobody else accesses it.
        unsafe { address.write_volatile(1) };
    }
}

/// Clears frames that the caller holds, as a kernel does before it maps them for a process.
fn clear(machine: &Hosted, range: PfnRange) {
    if let Some(address) = machine.address_of(range.start()) {
        let len = usize::try_from(range.bytes().0).unwrap_or(0);
        // SAFETY: the caller holds the frames of `range`, so nobody else accesses them.
        unsafe { address.write_bytes(0, len) };
        black_box(address);
    }
}
