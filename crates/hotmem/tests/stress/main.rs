//! Threads allocate and free memory while other memory is plugged and unplugged. The owner of each
//! frame is in a table and in the frame itself, which shows frames that are allocated twice, lost,
//! or not present. When all threads rest, all frames are counted and allocated.
//!
//! `HOTMEM_STRESS_SECONDS` sets the duration, `HOTMEM_SEED` the seed.

#![allow(clippy::cast_possible_truncation, reason = "frame numbers are small here")]

mod allocations;
mod host;
mod last;
mod plug;

use allocations::{Allocations, Cache};
use fastrand::Rng;
use host::Host;
use hotmem::{AllocRequest, BootMap, BootRange, Bytes, Frames, PfnRange, geometry::FRAME_SIZE};
use hotmem_port::CpuMagazine;
use hotmem_testkit::Raw as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::link::Link;
use hotmem_testkit::{BLOCK, Cpus, Memory, SECTION, env, range};
use plug::Plug;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const SMALL: bool = cfg!(hotmem_geometry = "small");
const BOOT_SECTIONS: u64 = if SMALL { 4 } else { 1 };
const HOT_SECTIONS: u64 = if SMALL { 4 } else { 2 };
const SIZE: u64 = (BOOT_SECTIONS + HOT_SECTIONS) * SECTION;
/// The first frames of the regions that are plugged and unplugged. They share a section.
const HOT: u64 = BOOT_SECTIONS * SECTION;
const HOT_MIDDLE: u64 = HOT + HOT_SECTIONS * SECTION / 2 + BLOCK;
const WORKERS: usize = 3;
/// The time limit for every action to happen at least once. Only a defect takes that long, however
/// slow and busy the host is.
const PATIENCE: Duration = Duration::from_secs(600);

/// The load between two rests of all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    number: u64,
    until: Instant,
    /// The limit of operations.
    operations: u64,
    /// Whether so much memory stays free that no allocation of a frame may fail.
    roomy: bool,
}

fn rounds() -> impl Iterator<Item = Round> {
    let operations = if cfg!(miri) { 15 } else { u64::MAX };
    let round = move |number: u64| Round {
        number,
        until: Instant::now() + Duration::from_millis(250),
        operations,
        roomy: number.is_multiple_of(2),
    };
    let last = if cfg!(miri) { 2 } else { u64::MAX };
    (0..last).map(round)
}

#[test]
fn frames_are_never_handed_out_twice_nor_lost() {
    let seconds = if env("HOTMEM_DEEP").is_some() { 300 } else { 10 };
    let seconds = env("HOTMEM_STRESS_SECONDS").unwrap_or(seconds);
    let seed = env("HOTMEM_SEED").unwrap_or(0x5eed);
    let memory = Memory::new(SIZE);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: Bytes(BOOT_SECTIONS * SECTION * FRAME_SIZE) }];
    let map = BootMap::of_ram(&ram);
    let hotplug = hotmem_testkit::start(&frames, Link::new(memory.direct_map()), &map).unwrap();
    let allocations = Allocations::new(&frames, &memory);
    let mut plug = Plug::new(hotplug, &allocations, Rng::with_seed(seed));
    let mut host = Host::new(&allocations, Rng::with_seed(!seed));
    let worker = |i| {
        // SAFETY: one worker uses it at a time, and no call interrupts another.
        let cache: Cache = unsafe { CpuMagazine::new(&frames, AllocRequest::frames(1).movable()) };
        (Rng::with_seed(seed + i), cache)
    };
    let mut workers: Vec<_> = (1..=WORKERS as u64).map(worker).collect();
    let (start, mut count, mut enough) = (Instant::now(), 0, cfg!(miri));
    for round in rounds() {
        if round.roomy {
            allocations.free_excess();
        }
        std::thread::scope(|scope| {
            for (number, (rng, cache)) in workers.iter_mut().enumerate() {
                let allocations = &allocations;
                scope.spawn(move || work(allocations, round, number, rng, cache));
            }
            scope.spawn(|| serve(round, &mut host));
            manage(round, &mut plug);
        });
        for (_, cache) in &workers {
            cache.drain();
        }
        host.rest();
        check(&allocations);
        count += 1;
        let done = allocations.done();
        enough |= done.allocations > 1000
            && done.exhausted > 0
            && done.cached > 0
            && plug.has_done_everything()
            && host.has_done_everything();
        let (took, wanted) = (start.elapsed(), Duration::from_secs(seconds));
        if took >= PATIENCE.max(wanted) || (enough && took >= wanted) {
            break;
        }
    }
    let done = allocations.done();
    println!("{count} rounds, {done:?}, {plug:?}, {host:?}");
    assert!(enough, "{done:?}, {plug:?}, {host:?}");
}

/// Allocates and frees.
fn work(
    allocations: &Allocations<'_>,
    round: Round,
    number: usize,
    rng: &mut Rng,
    cache: &Cache<'_>,
) {
    // One CPU for all threads, as with interrupt handlers; one CPU for each thread; a random CPU.
    Cpus::run_on([0, number, rng.usize(..WORKERS)][round.number as usize % 3]);
    for _ in 0..round.operations {
        if Instant::now() > round.until {
            break;
        }
        for _ in 0..16 {
            allocations.step_worker(rng, cache, round.roomy);
            allocations.drain_if_asked(number, cache);
        }
    }
}

/// Reports free memory.
fn serve(round: Round, host: &mut Host<'_, '_>) {
    for _ in 0..round.operations {
        if Instant::now() > round.until {
            break;
        }
        host.step();
    }
}

/// Plugs and unplugs.
fn manage(round: Round, plug: &mut Plug<'_, '_>) {
    Cpus::run_on(WORKERS);
    for _ in 0..round.operations {
        if Instant::now() > round.until {
            break;
        }
        plug.step();
    }
    plug.settle();
}

/// Checks that each frame is free, has an owner or is metadata. Called while all threads rest.
fn check(allocations: &Allocations<'_>) {
    let frames = allocations.frames;
    let counts = frames.validated().unwrap_or_else(|fault| panic!("{fault}"));
    let owned = allocations.check_owners();
    let metadata: u64 = frames.metadata().map(|metadata| metadata.frames.frames()).sum();
    assert_eq!((counts.isolated, counts.free), (0, counts.online - owned - metadata));
    // All free memory can be allocated.
    let mut found = BTreeSet::new();
    while let Ok(frame) = frames.take_raw(AllocRequest::frames(1).movable()) {
        allocations.assert_unowned(frame);
        assert!(found.insert(frame.start().number()), "{frame} was handed out twice");
    }
    let bitmaps: u64 = frames.metadata().map(|metadata| metadata.frames.frames()).sum();
    assert_eq!(found.len() as u64 + bitmaps - metadata, counts.free, "frames were lost");
    for run in runs(&found.into_iter().collect::<Vec<_>>()) {
        frames.give_raw(run).unwrap();
    }
    frames.validated().unwrap_or_else(|fault| panic!("{fault}"));
}

/// Joins neighbouring frames of one region to ranges.
pub(crate) fn runs(frames: &[u64]) -> impl Iterator<Item = PfnRange> {
    let together = |a: &u64, b: &u64| a + 1 == *b && ![HOT, HOT_MIDDLE].contains(b);
    frames.chunk_by(together).map(|run| range(run[0], run.len() as u64))
}
