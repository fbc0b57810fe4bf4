//! Frames allocated, cleared and freed, as will-it-scale's `page_fault1` does.

use super::Subject;
use crate::hosted::{Hosted, Threads};
use anyhow::{Context, Result, ensure};
use hotmem::{
    Announce, Bytes, NoHooks, NodeId, OnlineType, PfnRange, Want,
    geometry::PAGEBLOCK_FRAMES,
    report::{Settings, Statistics},
};
use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Memory of each of the two nodes.
const NODE: Bytes = Bytes::mib(512);
/// What a thread has in use at the end of each round.
const WORKING_SET: Bytes = Bytes::mib(128);

/// How much of it is done.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Seconds(u16),
    /// Of the working set, by each thread. Frames are touched, not cleared: their instructions are
    /// counted, and clearing takes ten times those of the allocator.
    Rounds(u64),
}

/// What was measured.
pub(super) struct Done {
    pub(super) rate: f64,
    pub(super) statistics: Option<Statistics>,
}

pub(super) fn name(threads: u16) -> String {
    format!("page_fault1/{threads}")
}

/// Frames of a round.
pub(super) const fn operations_a_round() -> u64 {
    WORKING_SET.frames()
}

/// Measures with as many threads; the first is the caller's.
pub(super) fn measure(subject: Subject, threads: u16, work: Work) -> Result<Done> {
    let machine = Hosted::builder().room(Bytes(2 * NODE.0)).build()?;
    let mut hotplug = machine.boot()?;
    for (number, memory) in machine.room().chunks(NODE.frames()).enumerate() {
        let node = NodeId::new(number).context("two nodes")?;
        hotplug.announce(Announce::range(memory).on_node(node))?;
        hotplug.add(memory, &mut NoHooks)?;
        hotplug.online(memory, OnlineType::Movable, &mut NoHooks)?;
    }
    // All of it has been used once.
    let all: Vec<_> = core::iter::from_fn(|| {
        machine.frames().alloc(Want::frames(PAGEBLOCK_FRAMES as u64).movable()).ok()
    })
    .collect();
    for &range in &all {
        clear(&machine, range);
        machine.frames().free(range)?;
    }
    if subject == Subject::Before {
        return Ok(Done { rate: work_with(&machine, threads, work)?, statistics: None });
    }
    let reporter = machine.reporter(Settings::default())?;
    let (rate, statistics) = thread::scope(|scope| {
        let _running = reporter.start(scope);
        reporter.wait_until_idle();
        let rate = work_with(&machine, threads, work);
        (rate, reporter.statistics())
    });
    ensure!(statistics.reported > 0, "nothing was reported");
    ensure!(statistics.refaulted > 0, "nothing was used again after it was reported");
    Ok(Done { rate: rate?, statistics: Some(statistics) })
}

/// Operations a second of all threads.
fn work_with(machine: &Hosted, threads: u16, work: Work) -> Result<f64> {
    let barrier = Barrier::new(usize::from(threads));
    let one = |number: u16| -> Result<f64> {
        Threads::run_on(NodeId::new(usize::from(number)).context("a node for each thread")?);
        let mut held = Vec::with_capacity(usize::try_from(WORKING_SET.frames())?);
        barrier.wait();
        let started = Instant::now();
        let mut rounds = 0;
        while match work {
            Work::Seconds(seconds) => started.elapsed() < Duration::from_secs(seconds.into()),
            Work::Rounds(wanted) => rounds < wanted,
        } {
            round(machine, work, &mut held)?;
            rounds += 1;
        }
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let operations = (rounds * operations_a_round()) as f64;
        Ok(operations / started.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let one = &one;
        let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || one(number))).collect();
        let mut rate = one(0)?;
        for other in others {
            rate += other.join().expect("a measuring thread panicked")?;
        }
        Ok(rate)
    })
}

fn round(machine: &Hosted, work: Work, held: &mut Vec<PfnRange>) -> Result<()> {
    let frames = machine.frames();
    for _ in 0..WORKING_SET.frames() {
        let frame = frames.alloc(Want::frames(1).movable())?;
        match work {
            Work::Seconds(_) => clear(machine, frame),
            Work::Rounds(_) => touch(machine, frame),
        }
        held.push(frame);
    }
    held.drain(..).try_for_each(|frame| frames.free(frame))?;
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
