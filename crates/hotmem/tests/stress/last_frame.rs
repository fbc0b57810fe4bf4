//! Tests a full machine, on which each thread frees one allocation and makes another of the same
//! size. As many allocations are free as threads have freed, so an allocation may fail with `Busy`,
//! but never with `OutOfMemory`.

use fastrand::Rng;
use hotmem::{AllocError, AllocRequest, BootRange, Frames, PfnRange};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, env_number, range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 3;
const SECTIONS: u64 = if cfg!(hotmem_geometry = "small") { 3 } else { 1 };

#[test]
fn the_last_frames_are_found() {
    swap_on_a_full_machine(AllocRequest::frames(1));
}

#[test]
fn the_last_pageblocks_are_found() {
    swap_on_a_full_machine(AllocRequest::frames(PAGEBLOCK));
}

fn swap_on_a_full_machine(request: AllocRequest) {
    let memory = Memory::new(SECTIONS * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTIONS * SECTION).bytes() }];
    let _hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    let mut allocations_by_thread = vec![Vec::new(); THREADS];
    let allocated = std::iter::from_fn(|| frames.alloc_range(request).ok());
    allocated.enumerate().for_each(|(i, range)| allocations_by_thread[i % THREADS].push(range));
    let (swaps, busy) = (AtomicU64::new(0), AtomicU64::new(0));
    let seconds = if env_number("HOTMEM_DEEP").is_some() { 60 } else { 2 };
    let seed = env_number("HOTMEM_SEED").unwrap_or(0x5eed);
    std::thread::scope(|scope| {
        for (number, allocations) in allocations_by_thread.iter_mut().enumerate() {
            let (frames, swaps, busy) = (&frames, &swaps, &busy);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed + number as u64);
                Cpus::run_on(number % 2);
                let deadline = Instant::now() + Duration::from_secs(seconds);
                while Instant::now() < deadline
                    && !(cfg!(miri) && swaps.load(Ordering::Relaxed) > 50)
                {
                    let busy_failures = swap(frames, request, allocations, &mut rng);
                    busy.fetch_add(busy_failures, Ordering::Relaxed);
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{swaps:?} swaps, {busy:?} times busy");
    frames.validated().unwrap();
    for range in allocations_by_thread.concat() {
        frames.free_range(range).unwrap();
    }
    frames.validated().unwrap();
}

/// Frees one allocation and makes another. Returns the number of attempts that failed with `Busy`.
fn swap(
    frames: &Frames<Cpus>,
    request: AllocRequest,
    allocations: &mut [PfnRange],
    rng: &mut Rng,
) -> u64 {
    let index = rng.usize(..allocations.len());
    frames.free_range(allocations[index]).unwrap();
    for busy_failures in 0.. {
        match frames.alloc_range(request) {
            Ok(range) => {
                allocations[index] = range;
                return busy_failures;
            }
            Err(AllocError::Busy) => std::hint::spin_loop(),
            Err(error) => panic!("an allocation failed although its thread has freed one: {error}"),
        }
    }
    unreachable!("the loop ends by success or failure")
}
