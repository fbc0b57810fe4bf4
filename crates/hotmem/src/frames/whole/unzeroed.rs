//! Hands out free memory that is not known to be zero, to a kernel that zeroes it while it is idle.

use crate::frames::{Allocation, CallContext, Frames};
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, SectionRef};

impl<P: Platform> Frames<P> {
    /// Returns an iterator that allocates the free pageblocks (2 MiB) which are not [known to be
    /// zero](Self::keep_zero_marks), one at a time, for a kernel that zeroes memory while it is idle. The
    /// kernel zeroes each, and frees it by [`free_zeroed_raw`](Self::free_zeroed_raw). Reported memory is
    /// left out, because a write to it would take RAM from the host.
    ///
    /// The iterator goes once through memory, upward, so that the pageblocks that are used next become
    /// zero first. A kernel that is no longer idle keeps the iterator for later, or drops it. It should
    /// have few of these pageblocks at one time: they are allocated, so another call may find no memory,
    /// and [`Hooks::migrate`](crate::Hooks::migrate) may be asked to migrate them. The iterator yields
    /// none while no marks are kept.
    ///
    /// ```
    /// # use hotmem::{Frames, OneCpu, PfnRange};
    /// fn zero_while_idle(frames: &Frames<OneCpu>, has_work: fn() -> bool, zero: fn(PfnRange)) {
    ///     for pageblock in frames.unzeroed_pageblocks() {
    ///         let range = pageblock.into_raw();
    ///         zero(range);
    ///         // SAFETY: the frames were allocated above, are zero, and nobody uses them.
    ///         unsafe { frames.free_zeroed_raw(range) }.expect("allocated above");
    ///         if has_work() {
    ///             break;
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// Context: any. Cost: 1 atomic read-modify-write for each pageblock, and 3 reads for each section
    /// (128 MiB).
    pub fn unzeroed_pageblocks(&self) -> impl Iterator<Item = Allocation<'_, P>> {
        let blocks = self.words().sections().flat_map(move |section| {
            // Each pageblock is looked at once, whatever the caller does with it.
            section
                .blocks(unzeroed(section))
                .filter(move |&block| self.call().alloc_unzeroed(block))
        });
        blocks.map(|block| self.give(block.range()))
    }
}

/// Returns the pageblocks of a section that are free, not reported and not known to be zero.
fn unzeroed(section: SectionRef<'_>) -> u64 {
    section.free.load(Ordering::Relaxed)
        & !section.reported.load(Ordering::Relaxed)
        & !section.zeroed_blocks()
}

impl<P: Platform> CallContext<'_, P> {
    /// Allocates a pageblock as a whole, if marks are kept and it still is unzeroed. Returns whether it
    /// did.
    fn alloc_unzeroed(&self, block: Block<'_>) -> bool {
        let is_wanted =
            self.frames.keeps_zero_marks() && unzeroed(block.section()) & block.mask() != 0;
        if !is_wanted {
            return false;
        }
        // A claim may find a pageblock that it must put back, or divide around poison.
        self.start_hiding();
        if self.claim_all(block.section(), block.mask()).is_none() {
            return false;
        }
        self.hand_out(block);
        true
    }
}
