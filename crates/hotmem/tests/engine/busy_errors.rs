//! Tests that an allocation that must fail does not always return `Busy` while other CPUs allocate
//! and free all the time.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The least number of allocations that must fail.
const ATTEMPTS: usize = if cfg!(miri) { 5 } else { 50_000 };

/// The longest time for which the host may stop a thread: several hundred times as long as usual.
const MAX_STOP: Duration = Duration::from_secs(120);

#[test]
fn while_other_cpus_are_busy_some_failures_are_out_of_memory() {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, 2 * SECTION).bytes() }];
    let map = BootMap::from(&ram);
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    let hot = range(2 * SECTION, 2 * SECTION);
    hotplug.announce(hot).unwrap();
    hotplug.add(hot).unwrap();
    let stop = &AtomicBool::new(false);
    let frames = &frames;
    let (busy, attempts) = thread::scope(|scope| {
        for cpu in [1, 2] {
            scope.spawn(move || {
                Cpus::run_on(cpu);
                let mut rng = fastrand::Rng::with_seed(cpu as u64);
                let mut held = vec![];
                while !stop.load(Ordering::Relaxed) {
                    if held.len() > 200 || (rng.bool() && !held.is_empty()) {
                        frames.free_range(held.swap_remove(rng.usize(..held.len()))).unwrap();
                    } else {
                        let len = [1, 1, 1, 3, 16, PAGEBLOCK][rng.usize(..6)];
                        held.extend(frames.alloc_range(AllocRequest::frames(len)).ok());
                    }
                }
                held.into_iter().for_each(|range| frames.free_range(range).unwrap());
            });
        }
        let hotplug = &mut hotplug;
        scope.spawn(move || {
            Cpus::run_on(3);
            while !stop.load(Ordering::Relaxed) {
                hotplug.online(hot, OnlineType::Kernel, &mut NoHooks).unwrap();
                let mut request = hotplug.offline(hot).unwrap();
                while !stop.load(Ordering::Relaxed)
                    && !matches!(
                        request.poll(hotplug, &mut NoHooks, Budget::UNLIMITED),
                        Progress::Ready(_)
                    )
                {}
                if stop.load(Ordering::Relaxed) {
                    request.cancel(hotplug, &mut NoHooks);
                    return;
                }
            }
        });
        Cpus::run_on(4);
        let (mut attempts, mut busy) = (0, 0);
        // If another CPU is stopped in the middle of a hiding step, all searches return `Busy` until it
        // runs again, which may take long on a busy host.
        let start = Instant::now();
        while attempts < ATTEMPTS || (busy == attempts && start.elapsed() < MAX_STOP) {
            attempts += 1;
            match frames.alloc_range(AllocRequest::frames(8 * SECTION)) {
                Err(AllocError::Busy) => busy += 1,
                Err(AllocError::OutOfMemory) => {}
                other => panic!("{other:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        (busy, attempts)
    });
    println!("{busy} of {attempts} allocations returned Busy");
    assert!(busy < attempts, "all allocations returned Busy");
    frames.validated().unwrap();
    assert_eq!(frames.alloc_range(AllocRequest::frames(8 * SECTION)), Err(AllocError::OutOfMemory));
}
