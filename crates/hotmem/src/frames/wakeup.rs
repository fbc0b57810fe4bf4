//! How what becomes free finds the reporter, and how the reporter sleeps without a timer.
//!
//! Whoever publishes free pageblocks asks whether there is a reporter: one load. If so, the tree of
//! unreported pageblocks leads to them, and the first to publish while the reporter sleeps wakes
//! it. Nothing is lost, because each side does its own step first and then looks at the other's:
//!
//! | publisher | reporter |
//! |---|---|
//! | sets `free`, then loads the state: is there a reporter? | is switched on, then walks all that is free |
//! | sets the tree, then loads the state: does it sleep? | falls asleep, then looks at the tree again |
//!
//! In the first row all four are `SeqCst` accesses, so that the publisher pays for no fence; in the
//! second the fences in `paths.rs` stand between the steps.

use crate::sync::{AtomicU32, Ordering, array_of, const_unless_loom, fence, settled};
use crate::words::Zone;

/// There is no reporter, or it is switched off.
const OFF: u32 = 0;
/// It waits for something to become free.
const ASLEEP: u32 = 1;
/// It is at work or will look again by itself.
const AWAKE: u32 = 2;

/// The reporter as the allocator sees it. On a cache line of its own, hardly ever written.
#[repr(align(64))]
pub(crate) struct Wakeup {
    state: AtomicU32,
    /// 1: somebody is the reporter.
    taken: AtomicU32,
    /// Batches of earlier generations are void.
    generation: AtomicU32,
    /// Pageblocks of each zone that went out, and that came back: both only grow, and wrap.
    sent: [AtomicU32; 2],
    back: [AtomicU32; 2],
    /// Pageblocks that tokens took from the host, less those that they gave it. A statistic, which
    /// wraps: nothing depends on it.
    withdrawn: settled::AtomicU64,
    /// Not 0: there will be a reporter in this model.
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

    /// From now on loom looks at the wakeup state.
    #[cfg(all(loom, test))]
    pub(crate) fn model(&self) {
        self.is_modelled.store(1, Ordering::Relaxed);
    }

    /// Whether there is a reporter that must learn of what becomes free. `SeqCst`: see above.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // loom takes SeqCst accesses for AcqRel ones. A fence can stand for them, but it would
        // cover up what other orderings lack, so only models that have a reporter get one.
        #[cfg(loom)]
        if self.is_modelled.load(Ordering::Relaxed) == 0 {
            return false;
        }
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        self.state.load(Ordering::SeqCst) != OFF
    }

    /// Whether the reporter sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        // Acquire pairs with `wake`.
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    pub(crate) fn switch_on(&self) {
        self.state.swap(AWAKE, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn switch_off(&self) {
        self.state.swap(OFF, Ordering::SeqCst);
    }

    /// The reporter falls asleep; it must look once more after this.
    pub(crate) fn sleep(&self) {
        self.state.swap(ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst); // pairs with those in `paths.rs`: see above
    }

    /// Wakes the reporter if it sleeps; true for exactly one of those who try at the same time.
    pub(crate) fn wake(&self) -> bool {
        // The load first, so that frees do not fight for the cache line.
        self.state.load(Ordering::Relaxed) == ASLEEP
            && self
                .state
                .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// The caller is the reporter from now on, unless somebody is.
    pub(crate) fn take(&self) -> bool {
        // Acquire pairs with `leave`.
        self.taken.swap(1, Ordering::Acquire) == 0
    }

    /// Whether somebody is the reporter.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    /// The place is free again.
    pub(crate) fn leave(&self) {
        self.taken.store(0, Ordering::Release);
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Pageblocks of this zone are going out. To be called *before* they are claimed.
    pub(crate) fn note_sent(&self, zone: Zone, blocks: u32) {
        self.sent[zone as usize].fetch_add(blocks, Ordering::Relaxed);
        // Pairs with the one in `sent`: whoever sees that memory is missing sees that it was sent.
        fence(Ordering::Release);
    }

    /// They are free again, or were not claimed after all. Release pairs with `back`.
    pub(crate) fn note_back(&self, zone: Zone, blocks: u32) {
        self.back[zone as usize].fetch_add(blocks, Ordering::Release);
    }

    /// How many pageblocks of these zones have come back. Acquire: whoever sees that one has come
    /// back finds it.
    pub(crate) fn back(&self, zones: &[Zone]) -> u32 {
        let back = zones.iter().map(|&zone| self.back[zone as usize].load(Ordering::Acquire));
        back.fold(0, u32::wrapping_add)
    }

    /// How many had gone out. Equal to what [`back`](Self::back) said before, none was out
    /// meanwhile.
    pub(crate) fn sent(&self, zones: &[Zone]) -> u32 {
        fence(Ordering::Acquire); // pairs with the one in `note_sent`
        let sent = zones.iter().map(|&zone| self.sent[zone as usize].load(Ordering::Relaxed));
        sent.fold(0, u32::wrapping_add)
    }

    /// Pageblocks of a section that the host had are a token's now, or are nobody's.
    pub(crate) fn note_withdrawn(&self, blocks: u64) {
        if blocks != 0 {
            self.withdrawn.fetch_add(blocks.count_ones().into(), Ordering::Relaxed);
        }
    }

    /// Pageblocks of a section were a token's, and the host has them.
    pub(crate) fn note_given(&self, blocks: u64) {
        self.withdrawn.fetch_sub(blocks.count_ones().into(), Ordering::Relaxed);
    }

    pub(crate) fn withdrawn(&self) -> u64 {
        self.withdrawn.load(Ordering::Relaxed)
    }

    /// Voids all batches that were handed out so far.
    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}
