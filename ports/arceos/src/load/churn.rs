//! A load in which CPUs allocate and free continuously.

use alloc::vec::Vec;
use axstd::os::arceos::api::task::{AxCpuMask, ax_set_current_affinity};
use axstd::{println, thread};
use core::array;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of objects that a CPU has at once.
const OBJECTS: usize = 200;

static STOP: AtomicBool = AtomicBool::new(false);
/// The number of objects that were allocated, checked and freed.
static DONE: AtomicU64 = AtomicU64::new(0);

/// The threads of all CPUs but the first.
pub struct Load(Vec<thread::JoinHandle<()>>);

impl Load {
    /// Starts the load. The caller stays on the first CPU: the threads of the other CPUs never
    /// yield, so it would not run there after a wait.
    pub fn start() -> Load {
        stay_on(0);
        Load((1..axhal::cpu_num()).map(|cpu| thread::spawn(move || churn(cpu))).collect())
    }

    /// Does nothing, because the other CPUs use plugged memory continuously.
    pub fn use_memory(&mut self, _: bool) {}

    /// Returns false: the load keeps no memory that could be freed at once.
    pub fn free(&mut self) -> bool {
        false
    }

    /// Ends the load, and prints the number of objects.
    pub fn end(self) {
        // Relaxed, as everywhere in this file: `join` orders the counts.
        STOP.store(true, Ordering::Relaxed);
        self.0.into_iter().for_each(|thread| thread.join().expect("nobody panics"));
        println!("ok 1 - {} objects while memory came and went", DONE.load(Ordering::Relaxed));
    }
}

fn stay_on(cpu: usize) {
    ax_set_current_affinity(AxCpuMask::one_shot(cpu)).expect("there is such a CPU");
}

fn churn(cpu: usize) {
    stay_on(cpu);
    let mut objects: [Vec<u64>; OBJECTS] = array::from_fn(|_| Vec::new());
    let mut random = cpu as u64;
    while !STOP.load(Ordering::Relaxed) {
        // The linear congruential generator of Numerical Recipes, of which the upper bits are used.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (random >> 33) as usize % OBJECTS;
        // Up to 2 KiB, and now and then up to 128 KiB.
        let most = if random >> 60 == 0 { 16_384 } else { 256 };
        let words = (random >> 40) as usize % most;
        let object = &mut objects[place];
        let number = place as u64 | (cpu as u64) << 32;
        assert!(object.iter().all(|&word| word == number), "memory lost its contents");
        *object = Vec::new();
        if object.try_reserve_exact(words).is_ok() {
            object.resize(words, number);
            DONE.fetch_add(1, Ordering::Relaxed);
        }
    }
}
