//! Tells the reporter of memory that becomes free, so that it can sleep without a timer.
//!
//! Code that publishes free pageblocks checks by one load whether there is a reporter. If there is
//! one, the tree of unreported pageblocks leads to these pageblocks, and the first publisher wakes
//! the reporter if it sleeps. No pageblock is missed, because each side does its own step before it
//! reads what the other has done:
//!
//! | publisher | reporter |
//! |---|---|
//! | sets `free`, then loads the state: is there a reporter? | is switched on, then visits free pageblocks |
//! | sets the tree, then loads the state: is it asleep? | falls asleep, then reads the tree again |
//!
//! The four steps of the first row are `SeqCst` accesses, so that the publisher needs no fence; in
//! the second row, the fences in `paths.rs` stand between the steps.

use crate::sync::{AtomicU32, Ordering, array_of, const_unless_loom, fence, settled};
use crate::words::Zone;

/// There is no reporter, or it is switched off.
const OFF: u32 = 0;
/// The reporter waits for memory to become free.
const ASLEEP: u32 = 1;
/// The reporter is at work, or will search again by itself.
const AWAKE: u32 = 2;

/// The reporter's state as the allocator sees it, on a cache line of its own that is rarely
/// written.
#[repr(align(64))]
pub(crate) struct Wakeup {
    state: AtomicU32,
    /// 1 if there is a reporter, even if it is switched off.
    taken: AtomicU32,
    /// The current generation. Batches of earlier generations are void.
    generation: AtomicU32,
    /// For each zone, how many pageblocks were taken out, and how many came back. Both counts only
    /// grow, and wrap.
    sent: [AtomicU32; 2],
    back: [AtomicU32; 2],
    /// The number of pageblocks that tokens took from the host, less the number that tokens gave to
    /// it. A statistic, which wraps: nothing depends on it.
    withdrawn: settled::AtomicU64,
    /// Not 0 if this loom model has a reporter.
    #[cfg(loom)]
    is_modelled: settled::AtomicU8,
}

impl Wakeup {
    const_unless_loom! {
        pub(crate) fn new() -> Wakeup {
            Wakeup {
                state: AtomicU32::new(OFF),
                taken: AtomicU32::new(0),
                generation: AtomicU32::new(0),
                sent: array_of![AtomicU32::new(0); 2],
                back: array_of![AtomicU32::new(0); 2],
                withdrawn: settled::AtomicU64::new(0),
                #[cfg(loom)]
                is_modelled: settled::AtomicU8::new(0),
            }
        }
    }

    /// Makes loom explore the wakeup state from now on.
    #[cfg(all(loom, test))]
    pub(crate) fn model(&self) {
        self.is_modelled.store(1, Ordering::Relaxed);
    }

    /// Returns whether there is a reporter that must learn of memory that becomes free. `SeqCst`:
    /// see the head of this file.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // loom treats SeqCst accesses as AcqRel ones. A fence can replace them, but it would hide
        // errors in other orderings, so only models that have a reporter get one.
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

    /// Wakes the reporter if it sleeps. Of several callers at the same time, exactly one gets true.
    pub(crate) fn wake(&self) -> bool {
        // The load comes first, so that frees do not contend for the cache line.
        self.state.load(Ordering::Relaxed) == ASLEEP
            && self
                .state
                .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Makes the caller the reporter. Returns false if there is another.
    pub(crate) fn register_reporter(&self) -> bool {
        // Acquire pairs with the Release in `unregister_reporter`.
        self.taken.swap(1, Ordering::Acquire) == 0
    }

    /// Returns whether there is a reporter, even if it is switched off.
    pub(crate) fn has_reporter(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    /// Ends the caller's role as the reporter.
    pub(crate) fn unregister_reporter(&self) {
        self.taken.store(0, Ordering::Release);
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Counts pageblocks of this zone that are being taken out. Called *before* they are claimed.
    pub(crate) fn note_sent(&self, zone: Zone, blocks: u32) {
        self.sent[zone as usize].fetch_add(blocks, Ordering::Relaxed);
        // Pairs with the fence in `sent`: a search that sees that memory is missing also sees this
        // count.
        fence(Ordering::Release);
    }

    /// Counts pageblocks that are free again, or that were not claimed after all. Release pairs
    /// with the Acquire in `back`.
    pub(crate) fn note_back(&self, zone: Zone, blocks: u32) {
        self.back[zone as usize].fetch_add(blocks, Ordering::Release);
    }

    /// Returns how many pageblocks of these zones have come back. Acquire: a search that sees the
    /// count of a pageblock also finds the pageblock.
    pub(crate) fn back(&self, zones: &[Zone]) -> u32 {
        let back = zones.iter().map(|&zone| self.back[zone as usize].load(Ordering::Acquire));
        back.fold(0, u32::wrapping_add)
    }

    /// Returns how many pageblocks of these zones were taken out. If it equals what
    /// [`back`](Self::back) returned before, none was out in between.
    pub(crate) fn sent(&self, zones: &[Zone]) -> u32 {
        fence(Ordering::Acquire); // pairs with the fence in `note_sent`
        let sent = zones.iter().map(|&zone| self.sent[zone as usize].load(Ordering::Relaxed));
        sent.fold(0, u32::wrapping_add)
    }

    /// Counts pageblocks of a section that the host had, and that it has no longer: a token owns
    /// them now, or nobody does.
    pub(crate) fn note_withdrawn(&self, blocks: u64) {
        if blocks != 0 {
            self.withdrawn.fetch_add(blocks.count_ones().into(), Ordering::Relaxed);
        }
    }

    /// Counts pageblocks of a section that a token owned, and that the host has now.
    pub(crate) fn note_given(&self, blocks: u64) {
        self.withdrawn.fetch_sub(blocks.count_ones().into(), Ordering::Relaxed);
    }

    pub(crate) fn withdrawn(&self) -> u64 {
        self.withdrawn.load(Ordering::Relaxed)
    }

    /// Voids all batches that were made so far.
    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}
