//! Sends requests to all other CPUs, and waits for their answers.

use super::limits::MAX_CPUS;
use core::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// A request to all other CPUs. It is asked in numbered rounds; each CPU answers by storing the
/// round.
pub(crate) struct Signal {
    asked: AtomicU32,
    answered: [AtomicU32; MAX_CPUS],
}

/// The number of other CPUs that run. Only the CPU that boots writes it.
static OTHER_CPUS: AtomicUsize = AtomicUsize::new(0);

/// Returns how many other CPUs run.
pub(crate) fn other_cpus() -> usize {
    OTHER_CPUS.load(Relaxed)
}

/// Sets how many other CPUs run. Only the CPU that boots calls this.
pub(crate) fn set_other_cpus(count: usize) {
    OTHER_CPUS.store(count, Relaxed);
}

impl Signal {
    pub(crate) const fn new() -> Self {
        Signal { asked: AtomicU32::new(0), answered: [const { AtomicU32::new(0) }; MAX_CPUS] }
    }

    /// Asks all other CPUs, and waits until all have answered. Only the CPU that boots asks.
    pub(crate) fn ask(&self) {
        self.wait(self.begin());
    }

    /// Asks all other CPUs, without waiting. Returns the round to [wait](Self::wait) for.
    pub(crate) fn begin(&self) -> u32 {
        let round = self.asked.load(Relaxed).wrapping_add(1);
        // Release pairs with the Acquire in `answer`: a CPU that reads the round sees all writes
        // before it.
        self.asked.store(round, Release);
        round
    }

    /// Waits until all other CPUs have answered this round.
    pub(crate) fn wait(&self, round: u32) {
        for answered in &self.answered[1..=other_cpus()] {
            // Acquire pairs with the Release in `answer`: this CPU sees what `act` has written.
            while answered.load(Acquire) != round {
                core::hint::spin_loop();
            }
        }
    }

    /// If the request was asked and CPU `cpu` has not answered it, calls `act` and answers.
    pub(crate) fn answer(&self, cpu: usize, act: impl FnOnce()) {
        // Acquire pairs with the Release in `begin`.
        let round = self.asked.load(Acquire);
        let answered = &self.answered[cpu];
        if answered.load(Relaxed) != round {
            act();
            // Release pairs with the Acquire in `wait`.
            answered.store(round, Release);
        }
    }
}
