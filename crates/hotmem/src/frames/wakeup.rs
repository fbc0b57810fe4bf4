//! Wakes the reporter when memory becomes free, so that the reporter can sleep without a timer.
//!
//! Code that publishes free pageblocks checks by one load whether the reporter is switched on. If
//! so, it makes the tree of unreported memory lead to these pageblocks, and the first publisher
//! wakes the reporter if it sleeps. No pageblock is missed, because each side does its own step
//! before it reads what the other has done:
//!
//! | publisher | reporter |
//! |---|---|
//! | sets `free`, then loads the state: is there a reporter? | is switched on, then visits free pageblocks |
//! | sets the tree, then loads the state: is it asleep? | falls asleep, then reads the tree again |
//!
//! The four steps of the first row are `SeqCst` accesses, so that the publisher needs no fence; in
//! the second row, the fences in `paths.rs` stand between the steps.

use crate::geometry::count_ones;
use crate::sync::{AtomicU32, Ordering, array_of, const_unless_loom, fence, untracked};
use crate::words::Zone;

/// The instance has no reporter, or the reporter is switched off.
const OFF: u32 = 0;
/// The reporter waits for memory to become free.
const ASLEEP: u32 = 1;
/// The reporter works, or the kernel will call its next step without being woken.
const AWAKE: u32 = 2;

/// The state that the allocator and the reporter share, on a separate cache line that is rarely
/// written.
#[repr(align(64))]
pub(crate) struct Wakeup {
    state: AtomicU32,
    /// 1 if the instance has a reporter, even if it is switched off.
    has_reporter: AtomicU32,
    /// The current generation. Batches of earlier generations are void.
    generation: AtomicU32,
    /// For each zone, the number of pageblocks that were sent to the host, and the number that came
    /// back. Both counts only grow, and wrap.
    blocks_sent: [AtomicU32; 2],
    blocks_returned: [AtomicU32; 2],
    /// The number of reported pageblocks that are no longer reported and were not allocated, minus
    /// the number that tokens marked as reported. It wraps, and is used only for statistics.
    blocks_withdrawn: untracked::AtomicU64,
    /// Not 0 if this loom model has a reporter.
    #[cfg(loom)]
    is_modelled: untracked::AtomicU8,
}

impl Wakeup {
    const_unless_loom! {
        pub(crate) fn new() -> Wakeup {
            Wakeup {
                state: AtomicU32::new(OFF),
                has_reporter: AtomicU32::new(0),
                generation: AtomicU32::new(0),
                blocks_sent: array_of![AtomicU32::new(0); 2],
                blocks_returned: array_of![AtomicU32::new(0); 2],
                blocks_withdrawn: untracked::AtomicU64::new(0),
                #[cfg(loom)]
                is_modelled: untracked::AtomicU8::new(0),
            }
        }
    }

    /// Makes loom explore the accesses of `state` from now on.
    #[cfg(all(loom, test))]
    pub(crate) fn model(&self) {
        self.is_modelled.store(1, Ordering::Relaxed);
    }

    /// Returns whether the reporter is switched on. `SeqCst`: see the head of this file.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // Loom treats SeqCst accesses as AcqRel ones. A fence can replace them, but it would hide
        // errors in other orderings, so only models that have a reporter use a fence.
        #[cfg(loom)]
        if self.is_modelled.load(Ordering::Relaxed) == 0 {
            return false;
        }
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        self.state.load(Ordering::SeqCst) != OFF
    }

    /// Returns whether the reporter sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        // Acquire pairs with the Release in `wake`.
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    pub(crate) fn switch_on(&self) {
        self.state.swap(AWAKE, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn switch_off(&self) {
        self.state.swap(OFF, Ordering::SeqCst);
    }

    /// Marks the reporter as asleep. The reporter must search once more after this.
    pub(crate) fn sleep(&self) {
        self.state.swap(ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst); // pairs with the fences in `paths.rs`: see the head
    }

    /// Wakes the reporter if it sleeps. Returns whether it did; of several concurrent callers, one
    /// gets true.
    pub(crate) fn wake(&self) -> bool {
        // The load comes first, so that frees do not contend for the cache line.
        self.state.load(Ordering::Relaxed) == ASLEEP
            && self
                .state
                .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Records that the instance has a reporter. Returns false if it had one already.
    pub(crate) fn register_reporter(&self) -> bool {
        // Acquire pairs with the Release in `unregister_reporter`.
        self.has_reporter.swap(1, Ordering::Acquire) == 0
    }

    /// Returns whether the instance has a reporter, even if it is switched off.
    pub(crate) fn has_reporter(&self) -> bool {
        self.has_reporter.load(Ordering::Relaxed) != 0
    }

    /// Records that the instance has no reporter any more.
    pub(crate) fn unregister_reporter(&self) {
        self.has_reporter.store(0, Ordering::Release);
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Counts pageblocks of this zone that are to be sent to the host. Called *before* they are
    /// claimed.
    pub(crate) fn note_sent(&self, zone: Zone, blocks: u32) {
        self.blocks_sent[zone as usize].fetch_add(blocks, Ordering::Relaxed);
        // Pairs with the fence in `total_sent`: a search that sees that memory is missing also sees
        // this count.
        fence(Ordering::Release);
    }

    /// Counts pageblocks that are free again, or whose claim has failed. Release pairs with the
    /// Acquire in `total_returned`.
    pub(crate) fn note_returned(&self, zone: Zone, blocks: u32) {
        self.blocks_returned[zone as usize].fetch_add(blocks, Ordering::Release);
    }

    /// Returns the number of pageblocks of these zones that have come back. Acquire: a search that
    /// sees the count of a pageblock also finds the pageblock.
    pub(super) fn total_returned(&self, zones: &[Zone]) -> u32 {
        let returned =
            zones.iter().map(|&zone| self.blocks_returned[zone as usize].load(Ordering::Acquire));
        returned.fold(0, u32::wrapping_add)
    }

    /// Returns the number of pageblocks of these zones that were sent. If it equals the number that
    /// [`total_returned`](Self::total_returned) returned before, no pageblock was reporting since
    /// then.
    pub(super) fn total_sent(&self, zones: &[Zone]) -> u32 {
        fence(Ordering::Acquire); // pairs with the fence in `note_sent`
        let sent =
            zones.iter().map(|&zone| self.blocks_sent[zone as usize].load(Ordering::Relaxed));
        sent.fold(0, u32::wrapping_add)
    }

    /// Counts pageblocks of a section that were reported and are not any more, because they
    /// went offline or were pinned or poisoned.
    pub(crate) fn note_withdrawn(&self, blocks: u64) {
        if blocks != 0 {
            self.blocks_withdrawn.fetch_add(count_ones(blocks), Ordering::Relaxed);
        }
    }

    /// Counts pageblocks of a section that a token has marked as reported.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn note_given(&self, blocks: u64) {
        self.blocks_withdrawn.fetch_sub(count_ones(blocks), Ordering::Relaxed);
    }

    pub(crate) fn withdrawn(&self) -> u64 {
        self.blocks_withdrawn.load(Ordering::Relaxed)
    }

    /// Voids all batches that were made so far.
    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}
