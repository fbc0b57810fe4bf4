//! Implements a load in which CPUs allocate and free objects continuously.

use alloc::vec::Vec;
use axstd::os::arceos::api::task::{AxCpuMask, ax_set_current_affinity};
use axstd::{println, thread};
use core::array;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of objects that a CPU has at the same time.
const OBJECTS_PER_CPU: usize = 200;

static STOP: AtomicBool = AtomicBool::new(false);
/// The number of objects that were allocated, checked and freed.
static OBJECTS_DONE: AtomicU64 = AtomicU64::new(0);

/// The threads of all CPUs except the first.
pub struct Load(Vec<thread::JoinHandle<()>>);

impl Load {
    /// Starts the load. Binds the calling thread to the first CPU, because the threads of the other
    /// CPUs never yield: on their CPUs, the calling thread would not run again after a wait.
    pub fn start() -> Load {
        stay_on(0);
        Load((1..axhal::cpu_num()).map(|cpu| thread::spawn(move || churn(cpu))).collect())
    }

    /// Does nothing, because the other CPUs use plugged memory continuously.
    pub fn use_memory(&mut self, _: bool) {}

    /// Returns false: the load keeps no memory that it could free now.
    pub fn free(&mut self) -> bool {
        false
    }

    /// Ends the load, and prints the number of objects.
    pub fn end(self) {
        // Relaxed, as everywhere in this file, because `join` orders the counts.
        STOP.store(true, Ordering::Relaxed);
        self.0.into_iter().for_each(|thread| thread.join().expect("the threads do not panic"));
        println!(
            "ok 1 - {} objects while memory came and went",
            OBJECTS_DONE.load(Ordering::Relaxed)
        );
    }
}

fn stay_on(cpu: usize) {
    ax_set_current_affinity(AxCpuMask::one_shot(cpu)).expect("the machine has the CPU");
}

fn churn(cpu: usize) {
    stay_on(cpu);
    let mut objects: [Vec<u64>; OBJECTS_PER_CPU] = array::from_fn(|_| Vec::new());
    let mut random = cpu as u64;
    while !STOP.load(Ordering::Relaxed) {
        // This is the linear congruential generator of Numerical Recipes. Only its upper bits are
        // random enough.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (random >> 33) as usize % OBJECTS_PER_CPU;
        // Most objects have up to 2 KiB; one of 16 has up to 128 KiB.
        let max_words = if random >> 60 == 0 { 16_384 } else { 256 };
        let words = (random >> 40) as usize % max_words;
        let object = &mut objects[index];
        let number = index as u64 | (cpu as u64) << 32;
        assert!(object.iter().all(|&word| word == number), "memory lost its contents");
        *object = Vec::new();
        if object.try_reserve_exact(words).is_ok() {
            object.resize(words, number);
            OBJECTS_DONE.fetch_add(1, Ordering::Relaxed);
        }
    }
}
