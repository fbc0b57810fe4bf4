//! Workers allocate and free memory, while other threads plug and unplug memory and report free memory
//! to a host. The owner of each frame is recorded in a table and in the frame itself, so the test
//! notices frames that are allocated twice, lost, or not present. After each round, when no other
//! thread runs, the test counts and allocates all free frames.
//!
//! `HOTMEM_STRESS_SECONDS` sets the duration, `HOTMEM_SEED` the seed.

#![allow(clippy::cast_possible_truncation, reason = "the frame numbers of this machine are small")]

mod allocations;
mod host;
mod last_frame;
mod plug;

use allocations::{Allocations, Magazine};
use fastrand::Rng;
use host::Host;
use hotmem::{AllocRequest, BootMap, BootRange, Bytes, Frames, PfnRange, geometry::FRAME_SIZE};
use hotmem_port::CpuMagazine;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::ForwardingMapping;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, env_number, range};
use plug::Plug;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const IS_SMALL_GEOMETRY: bool = cfg!(hotmem_geometry = "small");
const BOOT_SECTIONS: u64 = if !IS_SMALL_GEOMETRY || cfg!(miri) { 1 } else { 4 };
const HOT_SECTIONS: u64 = if !IS_SMALL_GEOMETRY || cfg!(miri) { 2 } else { 4 };
const SIZE: u64 = (BOOT_SECTIONS + HOT_SECTIONS) * SECTION;
/// The first frame of the first of two adjacent regions that are plugged and unplugged.
const HOTPLUG_START: u64 = BOOT_SECTIONS * SECTION;
/// The first frame of the second region. It lies inside a section, so the regions share this section.
const SECOND_REGION_START: u64 = HOTPLUG_START + HOT_SECTIONS * SECTION / 2 + PAGEBLOCK;
const WORKERS: usize = 3;
/// The time after which the test fails if some kind of operation never succeeded. Even on a slow and
/// busy host, only a defect takes that long.
const MAX_DURATION: Duration = Duration::from_secs(600);

/// The least number of allocations of all rounds together.
const MIN_ALLOCATIONS: u64 = if cfg!(miri) { 100 } else { 1000 };

/// The limits of one round: each thread stops at `deadline`, or after its number of operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    number: u64,
    deadline: Instant,
    /// The largest number of operations of a worker.
    operations: u64,
    /// The largest number of operations of the host, and of the thread that plugs and unplugs memory.
    control_operations: u64,
    /// Whether allocations are limited, so that an allocation of one frame never fails.
    is_limited: bool,
}

fn rounds() -> impl Iterator<Item = Round> {
    // Under Miri, a round ends after a number of operations, not after a time, and there is one
    // round for each assignment of CPUs (see `work`). Allocations are limited in all of these
    // rounds, because Miri takes minutes for a search of full memory.
    let (length, operations, numbers) = if cfg!(miri) {
        (MAX_DURATION * 10, 8, 0..3)
    } else {
        (Duration::from_millis(250), u64::MAX, 0..u64::MAX)
    };
    let round = move |number: u64| Round {
        number,
        deadline: Instant::now() + length,
        operations,
        control_operations: operations.div_ceil(2),
        is_limited: cfg!(miri) || number.is_multiple_of(2),
    };
    numbers.map(round)
}

#[test]
fn no_frame_is_allocated_twice_or_lost() {
    let seconds = if env_number("HOTMEM_DEEP").is_some() { 300 } else { 10 };
    let seconds = env_number("HOTMEM_STRESS_SECONDS").unwrap_or(seconds);
    let seed = env_number("HOTMEM_SEED").unwrap_or(0x5eed);
    let memory = Memory::new(SIZE);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: Bytes(BOOT_SECTIONS * SECTION * FRAME_SIZE) }];
    let map = BootMap::from(&ram);
    let hotplug =
        hotmem_testkit::start(&frames, ForwardingMapping::new(memory.direct_map()), map).unwrap();
    let allocations = Allocations::new(&frames, &memory);
    let mut plug = Plug::new(hotplug, &allocations, Rng::with_seed(seed));
    let mut host = Host::new(&allocations, Rng::with_seed(!seed));
    let worker = |i| {
        // SAFETY: one worker uses the magazine at a time, and no call interrupts another.
        let magazine: Magazine =
            unsafe { CpuMagazine::new(&frames, AllocRequest::frames(1).movable()) };
        (Rng::with_seed(seed + i), magazine)
    };
    let mut workers: Vec<_> = (1..=WORKERS as u64).map(worker).collect();
    let (start, mut rounds_run, mut all_happened) = (Instant::now(), 0, false);
    for round in rounds() {
        if round.is_limited {
            allocations.free_excess();
        }
        std::thread::scope(|scope| {
            for (number, (rng, magazine)) in workers.iter_mut().enumerate() {
                let allocations = &allocations;
                scope.spawn(move || work(allocations, round, number, rng, magazine));
            }
            scope.spawn(|| serve(round, &mut host));
            manage(round, &mut plug);
        });
        for (_, magazine) in &workers {
            magazine.drain();
        }
        host.report_all();
        check(&allocations);
        rounds_run += 1;
        let counts = allocations.counts();
        all_happened |= counts.allocations > MIN_ALLOCATIONS
            && counts.from_magazine > 0
            && (cfg!(miri)
                || counts.exhausted_failures > 0
                    && plug.has_done_everything()
                    && host.has_done_everything());
        let (took, min_duration) = (start.elapsed(), Duration::from_secs(seconds));
        let may_stop =
            took >= MAX_DURATION.max(min_duration) || (all_happened && took >= min_duration);
        if may_stop && !cfg!(miri) {
            break;
        }
    }
    let counts = allocations.counts();
    println!("{rounds_run} rounds, {counts:?}, {plug:?}, {host:?}");
    assert!(all_happened, "{counts:?}, {plug:?}, {host:?}");
}

/// Allocates and frees memory, as one worker.
fn work(
    allocations: &Allocations<'_>,
    round: Round,
    number: usize,
    rng: &mut Rng,
    magazine: &Magazine<'_>,
) {
    // Depending on the round's number, all threads share a CPU (as interrupt handlers do), each
    // thread has a CPU of its own, or each has a random CPU.
    Cpus::run_on([0, number, rng.usize(..WORKERS)][round.number as usize % 3]);
    for _ in 0..round.operations {
        if Instant::now() > round.deadline {
            break;
        }
        for _ in 0..16 {
            allocations.step_worker(rng, magazine, round.is_limited);
            allocations.drain_if_asked(number, magazine);
        }
    }
}

/// Reports free memory to the host, and answers as the host.
fn serve(round: Round, host: &mut Host<'_, '_>) {
    for _ in 0..round.control_operations {
        if Instant::now() > round.deadline {
            break;
        }
        host.step();
    }
}

/// Plugs and unplugs memory.
fn manage(round: Round, plug: &mut Plug<'_, '_>) {
    Cpus::run_on(WORKERS);
    for _ in 0..round.control_operations {
        if Instant::now() > round.deadline {
            break;
        }
        plug.step();
    }
    plug.online_all();
}

/// Checks that each frame is free, has an owner or is metadata. No other thread may run.
fn check(allocations: &Allocations<'_>) {
    let frames = allocations.frames;
    let counts = frames.validated().unwrap_or_else(|fault| panic!("{fault}"));
    let owned = allocations.check_owners();
    let metadata: u64 = frames.metadata().map(|metadata| metadata.frames.frames()).sum();
    assert_eq!((counts.isolated, counts.free), (0, counts.online - owned - metadata));
    // Allocate all free memory frame by frame, to find frames that are lost.
    let mut allocated_frames = BTreeSet::new();
    while let Ok(frame) = frames.alloc_range(AllocRequest::frames(1).movable()) {
        allocations.assert_unowned(frame);
        assert!(allocated_frames.insert(frame.start().number()), "{frame} was allocated twice");
    }
    let metadata_after: u64 = frames.metadata().map(|metadata| metadata.frames.frames()).sum();
    assert_eq!(
        allocated_frames.len() as u64 + metadata_after - metadata,
        counts.free,
        "frames were lost"
    );
    for run in runs(&allocated_frames.into_iter().collect::<Vec<_>>()) {
        frames.free_range(run).unwrap();
    }
    frames.validated().unwrap_or_else(|fault| panic!("{fault}"));
}

/// Joins adjacent frames of one region to ranges.
pub(crate) fn runs(frames: &[u64]) -> impl Iterator<Item = PfnRange> {
    let is_same_run =
        |a: &u64, b: &u64| a + 1 == *b && ![HOTPLUG_START, SECOND_REGION_START].contains(b);
    frames.chunk_by(is_same_run).map(|run| range(run[0], run.len() as u64))
}
