//! Implements a load in which CPUs allocate and free segments continuously.

use alloc::vec::Vec;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use ostd::boot::smp::register_ap_entry;
use ostd::cpu::CpuId;
use ostd::mm::{FrameAllocOptions, HasSize, PAGE_SIZE, Segment, VmIo};
use ostd::prelude::println;
use ostd::util::id_set::Id;

/// The number of segments that a CPU has at the same time.
const SEGMENTS_PER_CPU: usize = 100;

static STOP: AtomicBool = AtomicBool::new(false);
/// The number of CPUs that have stopped.
static STOPPED: AtomicUsize = AtomicUsize::new(0);
/// The number of segments that were allocated, checked and freed.
static SEGMENTS_DONE: AtomicU64 = AtomicU64::new(0);

/// The load of all CPUs except the first.
pub struct Churn;

impl Churn {
    /// Starts the load.
    pub fn start() -> Churn {
        register_ap_entry(churn);
        Churn
    }

    /// Ends the load, and prints the number of segments.
    pub fn end(self) {
        // Relaxed: no other data depend on the flag.
        STOP.store(true, Ordering::Relaxed);
        // Acquire pairs with the Release at the end of `churn`, so the counts are complete.
        while STOPPED.load(Ordering::Acquire) < ostd::cpu::num_cpus() - 1 {
            spin_loop();
        }
        println!(
            "ok 1 - {} segments while memory came and went",
            SEGMENTS_DONE.load(Ordering::Relaxed)
        );
    }
}

fn churn() {
    let cpu = CpuId::current_racy().as_usize() as u64;
    let mut segments: Vec<Option<Segment<()>>> = (0..SEGMENTS_PER_CPU).map(|_| None).collect();
    let mut random = cpu;
    while !STOP.load(Ordering::Relaxed) {
        // This is the linear congruential generator of Numerical Recipes. Only its upper bits are
        // random enough.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (random >> 33) as usize % SEGMENTS_PER_CPU;
        // Most segments have up to 8 frames; one of 16 has up to 600.
        let max_frames = if random >> 60 == 0 { 600 } else { 8 };
        let frames = 1 + (random >> 40) as usize % max_frames;
        let number = index as u64 | cpu << 32;
        if let Some(segment) = segments[index].take() {
            let mut words = frame_offsets(&segment).map(|offset| segment.read_val::<u64>(offset));
            let intact = words.all(|word| word.is_ok_and(|word| word == number));
            assert!(intact, "memory lost its contents");
        }
        if let Ok(segment) = FrameAllocOptions::new().zeroed(false).alloc_segment(frames) {
            frame_offsets(&segment).for_each(|offset| {
                segment.write_val(offset, &number).expect("the offset lies in the segment");
            });
            segments[index] = Some(segment);
            SEGMENTS_DONE.fetch_add(1, Ordering::Relaxed);
        }
    }
    drop(segments);
    // Release pairs with the Acquire in `end`.
    STOPPED.fetch_add(1, Ordering::Release);
    // Do not return: OSTD would then look for a task to run, and there is none.
    loop {
        spin_loop();
    }
}

/// Returns the offset of each frame of a segment.
fn frame_offsets(segment: &Segment<()>) -> impl Iterator<Item = usize> + use<> {
    (0..segment.size()).step_by(PAGE_SIZE)
}
