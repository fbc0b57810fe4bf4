//! Defines a platform whose threads choose their CPU.

use hotmem::Platform;
use std::cell::Cell;

/// A platform on which each thread chooses its CPU.
#[derive(Default)]
pub struct Cpus;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static WAKEUPS: Cell<u64> = const { Cell::new(0) };
}

impl Cpus {
    /// Sets the number of the CPU that the calling thread runs on.
    pub fn run_on(cpu: usize) {
        CPU.set(cpu);
    }

    /// Returns how often the engine has woken the reporter from the calling thread.
    #[must_use]
    pub fn wakeups() -> u64 {
        WAKEUPS.get()
    }
}

impl Platform for Cpus {
    const COUNTS_ALLOCATED: bool = true;

    fn cpu(&self) -> usize {
        CPU.get()
    }

    fn wake_reporter(&self) {
        WAKEUPS.set(WAKEUPS.get() + 1);
    }
}
