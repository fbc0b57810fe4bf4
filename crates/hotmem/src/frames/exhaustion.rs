//! Decides between the errors "out of memory" and "busy" after a search that found nothing.
//!
//! While a CPU divides a pageblock, coalesces it or moves it between hints, searches cannot find
//! the pageblock, although it has free frames. This cannot be avoided, so "out of memory" and
//! "busy, try again" are different errors. An operation that hides memory for a moment is a *move*.
//! Each CPU counts the moves that it has started and those that it has ended. A search that found
//! nothing proves that no memory is free only if no move overlapped with the search.
//!
//! A search that reads two words of bitmaps can also miss free memory without a move: it may read
//! the first word before a frame of it is freed, and the second word after its last free frame was
//! taken. So a free into a word without free frames also counts a move, before it sets the bits.
//!
//! Memory that is out for reporting is hidden for longer. It is counted by zone (see `wakeup.rs`),
//! so that a request does not fail as "busy" if no memory of its zones is out.

use super::cpu::Cpu;
use super::{AllocError, Frames};
use crate::platform::Platform;
use crate::sync::{Ordering, fence, mutant};
use crate::words::Zone;

/// The number of watched searches before the error is "busy". If other CPUs allocate and free all
/// the time, a move overlaps with most searches, but rarely with each of several searches. There is
/// an exception: if an interrupt or the hypervisor has stopped a CPU in the middle of a move, that
/// move overlaps with all searches until the CPU continues.
const ROUNDS: usize = if cfg!(loom) { 1 } else { 16 };

/// The moves of one call: the operations by which it hides memory. Between the first
/// [`start`](Moves::start) and the drop or [`end`](Moves::end), searches of other CPUs may miss the
/// memory that the call is moving.
pub(crate) struct Moves<'a> {
    cpu: &'a Cpu,
    started: bool,
}

impl<'a> Moves<'a> {
    /// Returns the value for a call that hides no memory yet. Changes no count.
    pub(super) fn new(cpu: &'a Cpu) -> Moves<'a> {
        Moves { cpu, started: false }
    }

    /// Returns the CPU that hides memory.
    #[inline]
    pub(super) fn cpu(&self) -> &'a Cpu {
        self.cpu
    }

    /// Counts the start of a move, unless this value has counted one already. The caller calls this
    /// *before* the step that hides memory.
    #[inline]
    pub(crate) fn start(&mut self) {
        if !self.started {
            self.started = true;
            // Release: the record is listed (see `Cpu::is_listed`).
            self.cpu.moves_started.fetch_add(1, Ordering::Release);
            // Pairs with the fence in `Watch::saw_no_move`: a search that sees that memory is missing
            // also sees this count.
            fence(Ordering::Release);
        }
    }

    /// Counts the end of the move, if one was started: searches can find all memory again. Returns
    /// the number of moves that this has ended, 0 or 1.
    pub(crate) fn end(&mut self) -> u32 {
        if !self.started {
            return 0;
        }
        self.started = false;
        // Release pairs with the Acquire in `Watch::start`: a search that sees this count sees the
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
    /// Repeats `search` until it finds memory to allocate, until it is certain that no memory is
    /// free, or until it has searched [`ROUNDS`] times. The first search is not watched: most
    /// searches succeed, and to read the counts of other CPUs costs a transfer of a cache line
    /// each.
    pub(super) fn search_all<T>(
        &self,
        zones: &[Zone],
        mut search: impl FnMut(&mut Moves<'_>) -> Option<T>,
    ) -> Result<T, AllocError> {
        // A loom model omits this search: it finds no memory that the next search would miss.
        if !cfg!(loom)
            && let Some(found) = search(&mut self.new_moves())
        {
            return Ok(found);
        }
        let mut drained = false;
        for _ in 0..ROUNDS {
            let watch = Watch::start(self, zones);
            let mut moves = self.new_moves();
            if let Some(found) = search(&mut moves) {
                return Ok(found);
            }
            let own = moves.end();
            if watch.saw_no_move(self, own) {
                mutant!("an allocation ignores pageblocks that are being reported" => return Err(AllocError::OutOfMemory));
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

    /// Returns whether no move is in flight on any CPU. The caller has no move in flight itself,
    /// and has passed a `SeqCst` fence since its last step.
    pub(crate) fn no_move_in_flight(&self) -> bool {
        mutant!("own bitmaps are dropped while a move is in flight" => return true);
        Watch::start(self, &[]).saw_no_move(self, 0)
    }
}

/// The counts before a search. Together with the counts after the search, they show whether the
/// search could have missed memory.
struct Watch {
    ended_before: u32,
    /// The count of returns of memory that was out for reporting.
    back_before: u32,
}

impl Watch {
    /// Reads the counts. The caller starts its own moves after this.
    fn start<P: Platform>(frames: &Frames<P>, zones: &[Zone]) -> Watch {
        let ended = frames.listed_cpus().map(|cpu| cpu.moves_ended.load(Ordering::Acquire));
        let ended_before = ended.fold(0, u32::wrapping_add);
        Watch { ended_before, back_before: frames.wakeup().back(zones) }
    }

    /// Returns whether no move of another CPU was in flight since [`start`](Self::start). `own` is
    /// the number of moves that the caller has counted and ended since then.
    ///
    /// The counts only grow, and on each CPU at least as many moves have started as have ended. So
    /// the sums are equal only if every move that had started when the search was over had ended
    /// before the search began.
    fn saw_no_move<P: Platform>(&self, frames: &Frames<P>, own: u32) -> bool {
        fence(Ordering::Acquire); // pairs with the fence in `Moves::start`
        let started = frames.listed_cpus().map(|cpu| cpu.moves_started.load(Ordering::Relaxed));
        started.fold(0, u32::wrapping_add) == self.ended_before.wrapping_add(own)
    }
}
