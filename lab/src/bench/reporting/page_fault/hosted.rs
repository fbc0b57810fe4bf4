//! Runs `page_fault1` on threads of this process, with the memory of a hosted machine.

use super::super::subject::Subject;
use super::{NODES, Plan, Timed, WORKING_SET};
use crate::hosted::{Hosted, Threads};
use anyhow::Result;
use hotmem::{
    AllocRequest, Announce, Bytes, NoHooks, NodeId, OnlineType, PfnRange,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES},
    report::{Settings, Statistics},
};
use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// The use of an allocated frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Use {
    /// It is cleared.
    Clear,
    /// Its first byte is written. This is for counts of instructions, because clearing takes ten
    /// times as many as the allocator.
    Touch,
}

/// Runs the plan and measures it. The caller's thread is the first thread.
pub(in super::super) fn measure(subject: Subject, plan: Plan, by: Use) -> Result<Timed> {
    let node = plan.node();
    let machine = Hosted::builder().room(Bytes(NODES * node.0)).build()?;
    let mut hotplug = machine.boot()?;
    for (number, memory) in (0..).zip(machine.room().chunks(node.frames())) {
        hotplug.announce(Announce { node: NodeId(number), ..memory.into() })?;
        hotplug.add(memory)?;
        hotplug.online(memory, OnlineType::Movable, &mut NoHooks)?;
    }
    // Uses all memory once, so that the host has allocated it.
    let all: Vec<_> = core::iter::from_fn(|| {
        machine.frames().alloc(AllocRequest::frames(PAGEBLOCK_FRAMES as u64).movable()).ok()
    })
    .collect();
    for range in all {
        clear(&machine, range.range());
        drop(range);
    }
    let timed = if subject == Subject::Silent {
        work(&machine, plan, by, Statistics::default)?
    } else {
        let reporter = machine.reporter(Settings::default())?;
        thread::scope(|scope| {
            let _running = reporter.start(scope);
            work(&machine, plan, by, || reporter.statistics())
        })?
    };
    timed.check(subject, plan)?;
    Ok(timed)
}

/// Runs all threads. `statistics` are those of the reporter so far.
fn work(
    machine: &Hosted,
    plan: Plan,
    by: Use,
    statistics: impl Fn() -> Statistics + Sync,
) -> Result<Timed> {
    let barrier = Barrier::new(usize::from(plan.threads));
    let one = |number: u16| -> Result<(Duration, Statistics)> {
        let node = u64::from(number) % NODES;
        Threads::run_on(NodeId(u32::try_from(node)?));
        let mut held = Vec::with_capacity(usize::try_from(WORKING_SET.frames())?);
        let mut burst = || (0..plan.rounds).try_for_each(|_| round(machine, by, &mut held));
        let first = burst();
        barrier.wait();
        first?;
        let before = statistics();
        // Threads take turns: while one runs a burst, the memory that another has freed is
        // reported.
        thread::sleep(plan.rest * u32::from(number) / u32::from(plan.threads));
        let mut busy = Duration::ZERO;
        for _ in 0..plan.bursts {
            thread::sleep(plan.rest);
            let started = Instant::now();
            burst()?;
            busy += started.elapsed();
        }
        Ok((busy, before))
    };
    thread::scope(|scope| {
        let one = &one;
        let others: Vec<_> =
            (1..plan.threads).map(|number| scope.spawn(move || one(number))).collect();
        let (mut busy, before) = one(0)?;
        for other in others {
            busy += other.join().expect("a measuring thread panicked")?.0;
        }
        let after = statistics();
        let bytes = |after: u64, before: u64| {
            Bytes((after - before) * PAGEBLOCK_FRAMES as u64 * FRAME_SIZE)
        };
        Ok(Timed {
            frames: plan.frames(),
            busy,
            threads: plan.threads,
            reported: bytes(after.reported, before.reported),
            refaulted: bytes(after.refaulted, before.refaulted),
        })
    })
}

fn round(machine: &Hosted, by: Use, held: &mut Vec<PfnRange>) -> Result<()> {
    let frames = machine.frames();
    for _ in 0..WORKING_SET.frames() {
        let frame = frames.alloc(AllocRequest::frames(1).movable())?.into_raw();
        match by {
            Use::Clear => clear(machine, frame),
            Use::Touch => touch(machine, frame),
        }
        held.push(frame);
    }
    // SAFETY: they were taken above, and are freed once.
    held.drain(..).try_for_each(|frame| unsafe { frames.free_raw(frame) })?;
    Ok(())
}

/// Writes to a frame that the caller holds, so that it has memory.
fn touch(machine: &Hosted, frame: PfnRange) {
    if let Some(address) = machine.address_of(frame.start()) {
        // SAFETY: the frame is the caller's.
        unsafe { address.write_volatile(1) };
    }
}

/// Clears frames that the caller holds, as a kernel does before it maps them for a process.
fn clear(machine: &Hosted, range: PfnRange) {
    if let Some(address) = machine.address_of(range.start()) {
        let len = usize::try_from(range.bytes().0).unwrap_or(0);
        // SAFETY: the frames are the caller's.
        unsafe { address.write_bytes(0, len) };
        black_box(address);
    }
}
