//! A platform whose threads choose their CPU.

use hotmem::Platform;
use std::cell::Cell;

/// A platform on which each thread chooses its CPU.
#[derive(Default)]
pub struct Cpus;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static RINGS: Cell<u64> = const { Cell::new(0) };
}

impl Cpus {
    /// Makes the calling thread run on this CPU from now on.
    pub fn run_on(cpu: usize) {
        CPU.set(cpu);
    }

    /// Returns how often the engine has woken the reporter from the calling thread.
    #[must_use]
    pub fn rings() -> u64 {
        RINGS.get()
    }
}

impl Platform for Cpus {
    fn cpu(&self) -> usize {
        CPU.get()
    }

    fn wake_reporter(&self) {
        RINGS.set(RINGS.get() + 1);
    }
}
