//! Signals: requests that all other CPUs must answer before the CPU that boots continues.

use super::limits::MAX_CPUS;
use core::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// A request to all other CPUs.
pub(crate) struct Signal {
    asked: AtomicU32,
    answered: [AtomicU32; MAX_CPUS],
}

/// The number of other CPUs that run. Only the CPU that boots writes it.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// Returns how many other CPUs run.
pub(crate) fn others() -> usize {
    OTHERS.load(Relaxed)
}

/// Sets how many other CPUs run. Only the CPU that boots calls this.
pub(crate) fn set_others(count: usize) {
    OTHERS.store(count, Relaxed);
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
        // Release pairs with the Acquire in `answer`: the other CPUs see all earlier writes.
        self.asked.store(round, Release);
        round
    }

    /// Waits until all other CPUs have answered this round.
    pub(crate) fn wait(&self, round: u32) {
        for answered in &self.answered[1..=others()] {
            // Acquire pairs with the Release in `answer`: the effects of the answers are visible.
            while answered.load(Acquire) != round {
                core::hint::spin_loop();
            }
        }
    }

    /// Calls `act` and answers, if the signal was asked.
    pub(crate) fn answer(&self, cpu: usize, act: impl FnOnce()) {
        let round = self.asked.load(Acquire);
        let answered = &self.answered[cpu];
        if answered.load(Relaxed) != round {
            act();
            answered.store(round, Release);
        }
    }
}
