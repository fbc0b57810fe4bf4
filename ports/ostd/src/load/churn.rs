//! A load in which CPUs allocate and free segments continuously.

use alloc::vec::Vec;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use ostd::boot::smp::register_ap_entry;
use ostd::cpu::CpuId;
use ostd::mm::{FrameAllocOptions, HasSize, PAGE_SIZE, Segment, VmIo};
use ostd::prelude::println;
use ostd::util::id_set::Id;

/// The number of segments that a CPU has at once.
const SEGMENTS: usize = 100;

static STOP: AtomicBool = AtomicBool::new(false);
/// The number of CPUs that have stopped.
static STOPPED: AtomicUsize = AtomicUsize::new(0);
/// The number of segments that were allocated, checked and freed.
static DONE: AtomicU64 = AtomicU64::new(0);

/// The load of all CPUs but the first.
pub struct Churn;

impl Churn {
    /// Starts the load.
    pub fn start() -> Churn {
        register_ap_entry(churn);
        Churn
    }

    /// Ends the load, and prints the number of segments.
    pub fn end(self) {
        // Relaxed: the flag publishes no other memory.
        STOP.store(true, Ordering::Relaxed);
        // Acquire pairs with the Release at the end of `churn`, and orders the counts.
        while STOPPED.load(Ordering::Acquire) < ostd::cpu::num_cpus() - 1 {
            spin_loop();
        }
        println!("ok 1 - {} segments while memory came and went", DONE.load(Ordering::Relaxed));
    }
}

fn churn() {
    let cpu = CpuId::current_racy().as_usize() as u64;
    let mut segments: Vec<Option<Segment<()>>> = (0..SEGMENTS).map(|_| None).collect();
    let mut random = cpu;
    while !STOP.load(Ordering::Relaxed) {
        // The linear congruential generator of Numerical Recipes, of which the upper bits are used.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (random >> 33) as usize % SEGMENTS;
        // Up to 8 frames, and now and then up to 600.
        let most = if random >> 60 == 0 { 600 } else { 8 };
        let frames = 1 + (random >> 40) as usize % most;
        let number = place as u64 | cpu << 32;
        if let Some(segment) = segments[place].take() {
            let mut words = starts(&segment).map(|start| segment.read_val::<u64>(start));
            let intact = words.all(|word| word.is_ok_and(|word| word == number));
            assert!(intact, "memory lost its contents");
        }
        if let Ok(segment) = FrameAllocOptions::new().zeroed(false).alloc_segment(frames) {
            starts(&segment).for_each(|start| {
                segment.write_val(start, &number).expect("a frame of the segment");
            });
            segments[place] = Some(segment);
            DONE.fetch_add(1, Ordering::Relaxed);
        }
    }
    drop(segments);
    // Release pairs with the Acquire in `end`.
    STOPPED.fetch_add(1, Ordering::Release);
    // This function does not return, because OSTD would then look for a task, and there is none.
    loop {
        spin_loop();
    }
}

/// Where the frames of a segment start.
fn starts(segment: &Segment<()>) -> impl Iterator<Item = usize> + use<> {
    (0..segment.size()).step_by(PAGE_SIZE)
}
