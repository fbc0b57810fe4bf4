//! Tests that allocations that succeed take few more instructions while memory is reported,
//! isolated or resized.
//!
//! One thread does both, in turn: an operation of the control path begins, then some allocations
//! and frees are counted, and then the operation ends. So the counts have no noise.

use crate::instruction_count;
use fastrand::Rng;
use hotmem::report::{Batch, Reporter, ReporterSettings, Step};
use hotmem::*;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, RawRanges as _, SECTION, range};
use std::time::Duration;

/// The environment variable that tells the process under valgrind what the control path does.
const CONTROL_VARIABLE: &str = "HOTMEM_BESIDE_ALLOCATIONS";
/// The sections of boot memory, of memory for allocations, and of memory that is added and removed.
const BOOT_SECTIONS: u64 = 1;
const TRAFFIC_SECTIONS: u64 = 4;
const RESIZED_SECTIONS: u64 = 1;
/// The number of pageblocks that are isolated at a time.
const ISOLATED_BLOCKS: u64 = 8;
/// The number of pageblocks that are used before each report.
const REPORTED_BLOCKS: usize = 16;
/// How often the control path runs, and the number of frees and allocations during each run.
const ROUNDS: u64 = 16;
const OPERATIONS: u64 = 256;
/// What allocations may take beside the control path, as a multiple of what they take alone.
const MAX_RATIO: f64 = 1.10;

/// Allocated frames: one half of the memory, as single frames, runs of 8 and whole pageblocks.
struct Traffic<'f> {
    frames: &'f Frames<Cpus>,
    allocations: Vec<PfnRange>,
    rng: Rng,
}

impl<'f> Traffic<'f> {
    fn new(frames: &'f Frames<Cpus>) -> Traffic<'f> {
        let mut traffic = Traffic { frames, allocations: Vec::new(), rng: Rng::with_seed(1) };
        let mut allocated = 0;
        while allocated < TRAFFIC_SECTIONS * SECTION / 2 {
            let len = [1, 8, PAGEBLOCK][match traffic.rng.u32(..100) {
                0 => 2,
                1..10 => 1,
                _ => 0,
            }];
            traffic.allocations.push(traffic.alloc(len));
            allocated += len;
        }
        traffic
    }

    fn alloc(&self, len: u64) -> PfnRange {
        self.frames.alloc_range(AllocRequest::frames(len).movable()).unwrap()
    }
}

/// Frees random allocations, and allocates as many frames again each time. valgrind counts the
/// instructions of this function only.
#[inline(never)]
fn counted_traffic(traffic: &mut Traffic<'_>) {
    for _ in 0..OPERATIONS {
        let index = traffic.rng.usize(..traffic.allocations.len());
        let former = traffic.allocations[index];
        traffic.frames.free_range(former).unwrap();
        traffic.allocations[index] = traffic.alloc(former.frames());
    }
}

/// Lets valgrind count the traffic, while the control path begins and ends what `beside` names.
fn count(beside: &str) {
    let runs = |label| beside == label || beside == "all";
    let memory = Memory::new((BOOT_SECTIONS + TRAFFIC_SECTIONS + RESIZED_SECTIONS) * SECTION);
    let frames = Frames::new(Cpus);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_SECTIONS * SECTION);
    let plugged = range(BOOT_SECTIONS * SECTION, TRAFFIC_SECTIONS * SECTION);
    let resized = range((BOOT_SECTIONS + TRAFFIC_SECTIONS) * SECTION, RESIZED_SECTIONS * SECTION);
    hotmem_testkit::plug(&mut hotplug, plugged);
    hotplug.announce(resized).unwrap();
    let settings = ReporterSettings { reporting_divisor: 1, ..ReporterSettings::EAGER };
    let mut reporter = Reporter::new(&frames, settings, Contents::Undefined).unwrap();
    let mut traffic = Traffic::new(&frames);
    let mut rng = Rng::with_seed(2);
    let (mut reports, mut isolations) = (0, 0);
    for round in 0..ROUNDS {
        // The traffic runs on CPU 0, and the control path on another.
        Cpus::run_on(1);
        let batch = runs("reports").then(|| {
            // Pageblocks that were in use have to be reported again.
            let used = [0; REPORTED_BLOCKS].map(|_| traffic.alloc(PAGEBLOCK));
            used.into_iter().for_each(|block| frames.free_range(block).unwrap());
            next_batch(&mut reporter, round)
        });
        let batch = batch.flatten();
        let isolation = runs("isolation").then(|| {
            let block = rng.u64(..TRAFFIC_SECTIONS * SECTION / PAGEBLOCK - ISOLATED_BLOCKS);
            let start = plugged.start().number() + block * PAGEBLOCK;
            // Memory that is being reported cannot be isolated.
            frames.isolate(range(start, ISOLATED_BLOCKS * PAGEBLOCK)).ok()
        });
        let isolation = isolation.flatten();
        if runs("resize") {
            hotplug.add(resized).unwrap();
            // The traffic prefers movable memory.
            hotplug.online(resized, OnlineType::Kernel, &mut NoHooks).unwrap();
        }
        Cpus::run_on(0);
        counted_traffic(&mut traffic);
        Cpus::run_on(1);
        if runs("resize") {
            let isolation = frames.isolate(resized).unwrap();
            hotplug.take_offline(isolation, &mut NoHooks).unwrap();
            hotplug.remove(resized).unwrap();
        }
        if let Some(isolation) = isolation {
            isolation.release();
            isolations += 1;
        }
        if let Some(batch) = batch {
            reporter.reported(batch);
            reports += 1;
        }
    }
    assert!(!runs("reports") || reports >= ROUNDS / 4, "only {reports} reports");
    assert!(!runs("isolation") || isolations >= ROUNDS / 4, "only {isolations} isolations");
}

/// Returns the next batch that the reporter has, if it has one now.
fn next_batch(reporter: &mut Reporter<'_, Cpus>, round: u64) -> Option<Batch> {
    loop {
        match reporter.step(Duration::from_secs(round)) {
            Step::Ready(batch) => return Some(batch.unwrap()),
            Step::Working => {}
            _ => return None,
        }
    }
}

/// Returns the average number of instructions of a free and an allocation.
fn instructions_beside(label: &str) -> f64 {
    let test = "interference::the_control_path_makes_allocations_little_dearer";
    let count = instruction_count::instructions(test, "counted_traffic", (CONTROL_VARIABLE, label));
    count / (ROUNDS * OPERATIONS) as f64
}

#[test]
fn the_control_path_makes_allocations_little_dearer() {
    if let Ok(beside) = std::env::var(CONTROL_VARIABLE) {
        return count(&beside);
    }
    if !instruction_count::can_count() {
        return;
    }
    let alone = instructions_beside("nothing");
    assert!(alone > 100.0, "{alone:.0} instructions are too few for a free and an allocation");
    for label in ["reports", "isolation", "resize", "all"] {
        let beside = instructions_beside(label);
        println!(
            "{alone:.1} instructions alone, {beside:.1} beside {label}: {:.3}",
            beside / alone
        );
        assert!(beside <= MAX_RATIO * alone, "{beside:.1} beside {label}, {alone:.1} alone");
    }
}
