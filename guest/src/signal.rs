//! Sends requests to all other CPUs, and waits for their answers.

use crate::limits::MAX_CPUS;
use core::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// A request to all other CPUs. Each use of the request is a numbered round. A CPU answers a round
/// by storing its number.
pub struct Signal {
    /// The number of the latest round.
    round: AtomicU32,
    /// The number of the round that each CPU answered last.
    answered_rounds: [AtomicU32; MAX_CPUS],
}

/// The number of other CPUs that run. Only the boot CPU writes it.
static OTHER_CPUS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of other CPUs that run.
#[must_use]
#[inline]
pub fn other_cpus() -> usize {
    OTHER_CPUS.load(Relaxed)
}

/// Sets the number of other CPUs that run. Only the boot CPU calls this.
pub fn set_other_cpus(count: usize) {
    OTHER_CPUS.store(count, Relaxed);
}

impl Signal {
    /// Makes a request without rounds.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a request is static")]
    pub const fn new() -> Self {
        Signal {
            round: AtomicU32::new(0),
            answered_rounds: [const { AtomicU32::new(0) }; MAX_CPUS],
        }
    }

    /// Begins a round, and waits until all other CPUs have answered it. Only the boot CPU calls
    /// this.
    pub fn request(&self) {
        self.wait(self.begin());
    }

    /// Begins a round. Returns its number, for [`wait`](Self::wait).
    pub fn begin(&self) -> u32 {
        let round = self.round.load(Relaxed).wrapping_add(1);
        // Release pairs with the Acquire in `answer`: a CPU that reads the round sees all writes
        // before it.
        self.round.store(round, Release);
        round
    }

    /// Waits until all other CPUs have answered this round.
    pub fn wait(&self, round: u32) {
        for answered in &self.answered_rounds[1..=other_cpus()] {
            // Acquire pairs with the Release in `answer`: this CPU sees what `act` has written.
            while answered.load(Acquire) != round {
                core::hint::spin_loop();
            }
        }
    }

    /// If a round has begun that CPU `cpu` has not answered, calls `act` and answers the round.
    pub fn answer(&self, cpu: usize, act: impl FnOnce()) {
        // Acquire pairs with the Release in `begin`.
        let round = self.round.load(Acquire);
        let answered = &self.answered_rounds[cpu];
        if answered.load(Relaxed) != round {
            act();
            // Release pairs with the Acquire in `wait`.
            answered.store(round, Release);
        }
    }
}
