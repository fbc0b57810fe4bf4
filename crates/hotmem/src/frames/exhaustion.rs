//! When "out of memory" may be said.
//!
//! A pageblock that a CPU is splitting, moving between hints or coalescing cannot be found for that
//! moment, though it has free frames. No hint rule cures that, so "exhausted" and "busy, try
//! again" are different answers: each CPU counts the operations that hide memory for a moment as it
//! starts and as it ends them, and a search that found nothing is believed only if no such
//! operation overlapped with it.
//!
//! What is out for reporting is hidden for longer. It counts by zone (see `wakeup.rs`): a request
//! for a zone of which nothing is out need not wait for the host.

use super::cpu::Cpu;
use super::{AllocError, Frames};
use crate::platform::Platform;
use crate::sync::{Ordering, fence, mutant};
use crate::words::Zone;

/// Watched searches before a caller is told to come again. Beside CPUs that never rest, a search is
/// rarely quiet, but one of several is. What remains is a CPU that is stopped in the middle of a
/// move, by an interrupt or its hypervisor: however often others search, they cannot be certain
/// before it goes on.
const ROUNDS: usize = if cfg!(loom) { 1 } else { 16 };

/// The caller's part in moving memory about: from the first [`start`](Moves::start) until it is
/// dropped or [`end`](Moves::end)ed, other CPUs may miss what it has in hand.
pub(crate) struct Moves<'a> {
    cpu: &'a Cpu,
    started: bool,
}

impl<'a> Moves<'a> {
    /// Nothing is being moved yet: this costs nothing.
    pub(super) fn none_yet(cpu: &'a Cpu) -> Moves<'a> {
        Moves { cpu, started: false }
    }

    /// The CPU that moves.
    #[inline]
    pub(super) fn cpu(&self) -> &'a Cpu {
        self.cpu
    }

    /// To be called *before* the step that hides memory, as often as one likes.
    pub(crate) fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.cpu.moves_started.fetch_add(1, Ordering::Relaxed);
            // Pairs with the fence in `Watch::was_quiet`: whoever sees that memory is missing
            // sees that this was started.
            fence(Ordering::Release);
        }
    }

    /// Everything can be found again. Says how many moves this was: none or one.
    pub(crate) fn end(&mut self) -> u32 {
        if !self.started {
            return 0;
        }
        self.started = false;
        // Release pairs with the Acquire in `Watch::start`: a search that sees the end sees the
        // memory where it was put.
        self.cpu.moves_ended.fetch_add(1, Ordering::Release);
        1
    }
}

impl Drop for Moves<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<P: Platform> Frames<P> {
    /// Searches for something to allocate until it is found, or until it is certain that there is
    /// none. The first search watches nobody: most find something, and what other CPUs count lies
    /// on cache lines of theirs.
    pub(super) fn search_all<T>(
        &self,
        zones: &[Zone],
        mut search: impl FnMut(&mut Moves<'_>) -> Option<T>,
    ) -> Result<T, AllocError> {
        if let Some(found) = search(&mut self.no_moves_yet()) {
            return Ok(found);
        }
        let mut drained = false;
        for _ in 0..ROUNDS {
            let watch = Watch::start(self, zones);
            let mut moves = self.no_moves_yet();
            if let Some(found) = search(&mut moves) {
                return Ok(found);
            }
            let own = moves.end();
            if watch.was_quiet(self, own) {
                mutant!("what is out does not count" => return Err(AllocError::OutOfMemory));
                if self.wakeup().sent(zones) != watch.back_before {
                    return Err(AllocError::Busy);
                }
                if drained || !self.platform.drain_magazines() {
                    return Err(AllocError::OutOfMemory);
                }
                drained = true;
            }
        }
        Err(AllocError::Busy)
    }
}

/// Whether a search could have missed something.
struct Watch {
    ended_before: u32,
    /// Of what was out for reporting.
    back_before: u32,
}

impl Watch {
    /// Starts before the caller's own moves.
    fn start<P: Platform>(frames: &Frames<P>, zones: &[Zone]) -> Watch {
        let ended = frames.seen_cpus().iter().map(|cpu| cpu.moves_ended.load(Ordering::Acquire));
        let ended_before = ended.fold(0, u32::wrapping_add);
        Watch { ended_before, back_before: frames.wakeup().back(zones) }
    }

    /// Whether nobody else moved anything since the start. `own` moves were the caller's.
    ///
    /// The counts only grow, and started ≥ ended for each CPU; so the sums are equal only if each
    /// CPU had ended before the search began what it had started when the search was over.
    fn was_quiet<P: Platform>(&self, frames: &Frames<P>, own: u32) -> bool {
        fence(Ordering::Acquire); // pairs with the one in `Moves::start`
        let started =
            frames.seen_cpus().iter().map(|cpu| cpu.moves_started.load(Ordering::Relaxed));
        started.fold(0, u32::wrapping_add) == self.ended_before.wrapping_add(own)
    }
}
