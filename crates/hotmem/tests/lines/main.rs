//! Counts accesses to atomics with 2 to 256 simulated CPUs: the transfers of cache lines, and what
//! the control path reads. A transfer is a write to a line that another CPU wrote last.
//!
//! `cargo xtask test` builds this test with `--cfg hotmem_atomics="counted"`. The simulated CPUs
//! take turns: each makes one call.
#![cfg(hotmem_atomics = "counted")]

mod control;
mod mixed_orders;

use hotmem::counted::{Accesses, run_as, take_accesses};
use hotmem::*;
use hotmem_testkit::{Cpus, DISTANT_PFN, Memory, RawRanges as _, SECTION, range};

const CPUS: [u32; 5] = [2, 4, 16, 64, 256];
/// The number of frames of boot memory, which holds all words and bitmaps.
const BOOT_FRAMES: u64 = 4 * SECTION;
const MOVABLE: AllocRequest = AllocRequest::frames(1).movable();

/// Runs `test` on an instance with two sections of movable memory for each CPU.
fn with_cpus(cpus: u32, test: impl FnOnce(&Frames<Cpus>)) {
    with_instance(cpus, 2 * u64::from(cpus), |frames, _| test(frames));
}

/// Runs `test` on an instance with this many CPUs and sections of movable memory.
fn with_instance(
    cpus: u32,
    sections: u64,
    test: impl for<'f> FnOnce(&'f Frames<Cpus>, &mut Hotplug<'f, Cpus, AlwaysMapped>),
) {
    let memory = Memory::new(BOOT_FRAMES);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
    let map = BootMap { cpus, ..BootMap::from(&ram) };
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    let plugged = range(DISTANT_PFN, sections * SECTION);
    hotplug.announce(plugged).unwrap();
    hotplug.add(plugged).unwrap();
    hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
    test(&frames, &mut hotplug);
}

fn switch_to(cpu: usize) {
    Cpus::run_on(cpu);
    run_as(cpu);
}

fn on_each(cpus: u32, mut work: impl FnMut(usize)) {
    for cpu in 0..cpus as usize {
        switch_to(cpu);
        work(cpu);
    }
}

/// The numbers of writes and of transfers for each frame.
struct PerFrame {
    writes: f64,
    transfers: f64,
}

/// Returns and prints the counts for each of the `frames` frames that `work` allocates and frees.
fn count(label: &str, cpus: u32, frames: u64, work: impl FnOnce()) -> PerFrame {
    take_accesses();
    work();
    let Accesses { writes, transfers, .. } = take_accesses();
    let per_frame = |count: u64| count as f64 / frames as f64;
    let (writes, transfers) = (per_frame(writes), per_frame(transfers));
    println!(
        "{label:8} {cpus:3} CPUs: {transfers:.4} transfers by {writes:.2} writes for each frame"
    );
    assert!(writes >= 2.0, "an allocation and a free make at least one write each");
    PerFrame { writes, transfers }
}

/// Checks that no line is transferred when each CPU allocates by `request` and frees the
/// allocation, and that this takes as many writes for any number of CPUs.
fn check_pairs(label: &str, request: AllocRequest) {
    let mut writes = None;
    for cpus in CPUS {
        with_cpus(cpus, |frames| {
            let pair = |rounds: u32| {
                for _ in 0..rounds {
                    let mut held = Vec::new();
                    on_each(cpus, |_| held.push(frames.alloc_range(request).unwrap()));
                    let mut held = held.into_iter();
                    on_each(cpus, |_| frames.free_range(held.next().unwrap()).unwrap());
                }
            };
            pair(4);
            let counted = count(label, cpus, 100 * u64::from(cpus), || pair(100));
            assert_eq!(counted.transfers, 0.0);
            assert_eq!(*writes.get_or_insert(counted.writes), counted.writes);
        });
    }
}

#[test]
fn a_pair_transfers_no_line() {
    check_pairs("pair", MOVABLE);
}

#[test]
fn a_pair_of_pageblocks_transfers_no_line() {
    check_pairs("order 9", AllocRequest::order(9).movable());
}

/// Lets each CPU allocate a section, one frame at each turn, and free it frame by frame.
#[test]
fn in_bulk_a_line_is_transferred_for_32_frames_at_most() {
    for cpus in CPUS {
        with_cpus(cpus, |frames| {
            let frames_per_cpu = SECTION;
            let bulk = || {
                let mut held = vec![Vec::new(); cpus as usize];
                for _ in 0..frames_per_cpu {
                    on_each(cpus, |cpu| held[cpu].push(frames.alloc_range(MOVABLE).unwrap()));
                }
                let mut held: Vec<_> = held.into_iter().map(Vec::into_iter).collect();
                for _ in 0..frames_per_cpu {
                    on_each(cpus, |cpu| frames.free_range(held[cpu].next().unwrap()).unwrap());
                }
            };
            bulk();
            let PerFrame { transfers, .. } =
                count("bulk", cpus, frames_per_cpu * u64::from(cpus), bulk);
            assert!(transfers <= 1.0 / 32.0, "{transfers}");
        });
    }
}

/// Fills 90 % of memory so that each pageblock has frames of all CPUs. Then each CPU frees a random
/// one of its frames and allocates another.
#[test]
fn random_traffic_transfers_two_lines_at_most() {
    for cpus in CPUS {
        with_cpus(cpus, |frames| {
            let mut rng = fastrand::Rng::with_seed(1);
            let mut all = Vec::new();
            switch_to(0);
            while let Ok(frame) = frames.alloc_range(MOVABLE) {
                all.push(frame);
            }
            rng.shuffle(&mut all);
            let tenth = all.len() / 10;
            for (nth, frame) in all.drain(..tenth).enumerate() {
                switch_to(nth % cpus as usize);
                frames.free_range(frame).unwrap();
            }
            let mut held: Vec<Vec<_>> = (0..cpus).map(|_| Vec::new()).collect();
            for (nth, frame) in all.into_iter().enumerate() {
                held[nth % cpus as usize].push(frame);
            }
            let mut swaps = |rounds: u32| {
                for _ in 0..rounds {
                    on_each(cpus, |cpu| {
                        let index = rng.usize(..held[cpu].len());
                        let frame = held[cpu].swap_remove(index);
                        frames.free_range(frame).unwrap();
                    });
                    on_each(cpus, |cpu| held[cpu].push(frames.alloc_range(MOVABLE).unwrap()));
                }
            };
            let rounds = 40_000 / cpus;
            swaps(rounds);
            let frames = u64::from(rounds) * u64::from(cpus);
            let PerFrame { transfers, .. } = count("random", cpus, frames, || swaps(rounds));
            // A free and an allocation each transfer the word of their frame.
            assert!(transfers > 0.0 && transfers <= 2.0, "{transfers}");
        });
    }
}
