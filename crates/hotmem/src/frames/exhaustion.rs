//! Decides between the errors "out of memory" and "busy" after a search that found nothing.
//!
//! During a *hiding step* (see `call.rs`), searches cannot find memory that is free. This cannot be
//! avoided, so "out of memory" and "busy, try again" are different errors. A search that found
//! nothing proves that no memory is free only if no hiding step overlapped with the search.
//!
//! A search that reads two words of bitmaps can also miss free memory without a hiding step: it may
//! read the first word before a frame of it is freed, and the second word after its last free frame
//! was taken. So a free counts a hiding step before it sets bits in a word that had no free frame, or
//! that was marked as a word without two neighbouring free frames. Other frees count none, so that they
//! stay fast. A search for a run may miss a run that such a free completes after the search has passed
//! it. If the search then finds another run taken that was free before, it says "out of memory", although
//! one of the two was free at every moment.
//!
//! An unplug that waits keeps memory isolated. Before an allocation fails, it takes this memory back:
//! see `parked.rs`.
//!
//! Memory that is with the host at this moment, between a report and the host's answer, is hidden for
//! longer. It is counted by zone (see `wakeup.rs`), so that a request fails as "busy" only if memory
//! of its own zones is with the host.

use super::{AllocError, CallContext, Frames};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, fence, mutant};
use crate::words::Zone;

/// The number of watched searches before the error is "busy". If other CPUs allocate and free all
/// the time, a hiding step overlaps with most searches, but rarely with each of several searches.
/// There is an exception: if an interrupt or the hypervisor has stopped a CPU in the middle of a
/// hiding step, this step overlaps with all searches until the CPU continues.
const ROUNDS: usize = if cfg!(loom) { 1 } else { 16 };

impl<P: Platform> Frames<P> {
    /// Repeats `search` until it finds memory to allocate, until it is certain that no memory is
    /// free, or until it has searched [`ROUNDS`] times. The first search is not watched: most
    /// searches succeed, and to read the counts of other CPUs costs a transfer of a cache line
    /// each.
    pub(super) fn search_all<T>(
        &self,
        zones: &[Zone],
        mut search: impl FnMut(&CallContext<'_, P>) -> Option<T>,
    ) -> Result<T, AllocError> {
        let mut found = None;
        self.search_until(zones, &mut |call| {
            found = search(call);
            found.is_some()
        })?;
        found.or_record_violation().ok_or(AllocError::Busy)
    }

    /// Does the same as [`search_all`](Self::search_all), until `search` returns true. This is one
    /// function for all types of values, because it is long.
    fn search_until(
        &self,
        zones: &[Zone],
        search: &mut dyn FnMut(&CallContext<'_, P>) -> bool,
    ) -> Result<(), AllocError> {
        // A loom model omits this search: it finds no memory that the next search would miss.
        if !cfg!(loom) && search(&self.call()) {
            return Ok(());
        }
        let mut drained = false;
        let mut rounds_left = ROUNDS;
        while rounds_left > 0 {
            rounds_left -= 1;
            let watch = Watch::start(self, zones);
            let call = self.call();
            if search(&call) {
                return Ok(());
            }
            let own_hiding_steps = call.end();
            // Look for parked memory before the counts are read. If another CPU takes the last parked
            // range before this look, the counts below show its hiding step.
            let parked = self.call().parked_in(zones);
            if watch.saw_no_hiding_step(self, own_hiding_steps) {
                mutant!("a search looks for parked memory after it has read the counts" => if self.call().parked_in(zones).is_none() { return Err(AllocError::OutOfMemory) });
                mutant!("an allocation ignores pageblocks that are being reported" => return Err(AllocError::OutOfMemory));
                if self.wakeup().total_sent(zones) != watch.returned_before {
                    return Err(AllocError::Busy);
                }
                if !drained && self.platform.drain_magazines() {
                    drained = true;
                    continue;
                }
                let Some(parked) = parked else { return Err(AllocError::OutOfMemory) };
                // Search once more for each range that was taken back. This ends, because a request
                // parks its memory again only when it is polled.
                if self.call().recall(parked) {
                    rounds_left += 1;
                }
            }
        }
        Err(AllocError::Busy)
    }

    /// Returns whether no hiding step is in flight on any CPU. The caller has no hiding step in
    /// flight itself, and has passed a `SeqCst` fence since its last step.
    pub(crate) fn no_hiding_step_in_flight(&self) -> bool {
        mutant!("self-hosted bitmaps are dropped while a hiding step is in flight" => return true);
        Watch::start(self, &[]).saw_no_hiding_step(self, 0)
    }
}

/// The counts before a search. Together with the counts after the search, they show whether the
/// search could have missed memory.
struct Watch {
    /// The number of hiding steps that had ended.
    ended_before: u32,
    /// The count of returns of memory that was reporting.
    returned_before: u32,
}

impl Watch {
    /// Reads the counts. The caller starts its own hiding steps after this.
    fn start<P: Platform>(frames: &Frames<P>, zones: &[Zone]) -> Watch {
        let ended =
            frames.cpus_with_records().map(|cpu| cpu.hiding_steps_ended.load(Ordering::Acquire));
        let ended_before = ended.fold(0, u32::wrapping_add);
        Watch { ended_before, returned_before: frames.wakeup().total_returned(zones) }
    }

    /// Returns whether no hiding step of another CPU was in flight since [`start`](Self::start).
    /// `own_hiding_steps` is the number of hiding steps that the caller has counted and ended since
    /// then.
    ///
    /// The counts only grow, and on each CPU at least as many hiding steps have started as have
    /// ended. So if as many steps had started at the end of the search as had ended at its beginning,
    /// each of them had ended before the search began.
    fn saw_no_hiding_step<P: Platform>(&self, frames: &Frames<P>, own_hiding_steps: u32) -> bool {
        fence(Ordering::Acquire); // pairs with the fence in `Cpu::start_hiding_step`
        let started =
            frames.cpus_with_records().map(|cpu| cpu.hiding_steps_started.load(Ordering::Relaxed));
        started.fold(0, u32::wrapping_add) == self.ended_before.wrapping_add(own_hiding_steps)
    }
}
