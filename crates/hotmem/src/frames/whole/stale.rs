//! Claims pageblocks whose block states may be stale.
//!
//! The free of a whole pageblock sets its `free` bit and leaves the block state unchanged. So the
//! free is one read-modify-write, and so is the next allocation of the whole pageblock. While the
//! bit is set, the block state is *stale*: it says "allocated as a whole", but the pageblock is
//! free. A CPU that claims the pageblock for another use first takes it back, by a compare-exchange
//! of the block state.
//!
//! An isolation or a poisoning may flag a block state at any moment, also while it is stale:
//!
//! - A free reads the block state, sets the `free` bit, and then reads the block state again.
//! - The CPU that sets a flag reads the `free` bit afterwards.
//!
//! So at least one of the two CPUs sees the write of the other, and tries to claim the pageblock.
//! The CPU that succeeds completes the free: an isolated pageblock now belongs to the isolation
//! token, and a poisoned one is divided. If neither succeeds, a third CPU has claimed the
//! pageblock, and does the same when it finds the flag.

use crate::frames::CallContext;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{mutant, sequential};
use crate::words::{Block, SectionRef, Zeroed};

impl<P: Platform> CallContext<'_, P> {
    /// Claims the free pageblocks among `wanted`, which so are no longer reported. Returns the claimed
    /// pageblocks.
    #[inline(never)]
    pub(in crate::frames) fn claim_any(&self, section: SectionRef<'_>, wanted: u64) -> u64 {
        let claimed = section.claim_any(wanted);
        self.withdraw_reported(section, claimed);
        self.take_back_stale(section, claimed)
    }

    /// Claims the free pageblocks among `wanted` for an isolation token, and returns them. They keep
    /// their marks as reported: until the token takes them out of the allocator, nobody accesses
    /// their memory, so the host need not take it again if the token releases them.
    pub(crate) fn claim_for_token(&self, section: SectionRef<'_>, wanted: u64) -> u64 {
        self.take_back_stale(section, section.claim_any(wanted))
    }

    /// Claims all pageblocks of `wanted`, or none. If it has claimed them, returns which of them are
    /// zero.
    pub(crate) fn claim_all(&self, section: SectionRef<'_>, wanted: u64) -> Option<Zeroed> {
        let zeroed = section.claim_all(wanted)?;
        let owned = self.take_back_stale(section, wanted);
        if owned != wanted && owned != 0 {
            self.put_back_blocks(section, owned, zeroed);
        }
        (owned == wanted).then_some(zeroed)
    }

    /// Publishes pageblocks again that the caller has claimed and not written to. `zeroed` is what the
    /// claim has returned.
    pub(in crate::frames) fn put_back_blocks(
        &self,
        section: SectionRef<'_>,
        blocks: u64,
        zeroed: Zeroed,
    ) {
        section.mark_zeroed(zeroed.among(blocks));
        self.publish_blocks(section, blocks);
    }

    /// Takes back those pageblocks of `claimed` whose block states are stale. Returns the
    /// pageblocks that the caller owns now: all but those that are isolated or poisoned. The caller
    /// has claimed `claimed`.
    pub(in crate::frames) fn take_back_stale(&self, section: SectionRef<'_>, claimed: u64) -> u64 {
        let mut owned = claimed;
        for block in section.blocks(claimed) {
            if block.state().load().is_whole() && !self.take_back_claimed(block) {
                owned &= !block.mask();
            }
        }
        owned
    }

    /// Takes back a claimed pageblock whose block state is stale. Returns false if the pageblock
    /// belongs to an isolation token now, or if it had poisoned frames and its other frames were
    /// freed.
    #[cold]
    fn take_back_claimed(&self, block: Block<'_>) -> bool {
        match block.state().take_back_whole() {
            Some(is_isolated) => {
                mutant!("a claim takes a pageblock that was isolated" => return true);
                !is_isolated
            }
            // The caller owns the pageblock as if it had allocated it.
            None => {
                self.frames.free_range(block.range()).or_record_violation();
                false
            }
        }
    }

    /// Looks at the block state of a pageblock that the caller has published. If the block state
    /// has been flagged, claims the pageblock again and completes the free.
    pub(in crate::frames) fn complete_publish(&self, block: Block<'_>) {
        mutant!("a free does not look at the block state again" => return);
        sequential();
        let state = block.state().load();
        if !state.is_whole() || !(state.is_isolated() || state.has_poison()) {
            return;
        }
        self.start_hiding();
        let owned = self.claim_any(block.section(), block.mask());
        if owned != 0 {
            // The flag has been cleared meanwhile.
            self.publish_blocks(block.section(), owned);
        }
    }

    /// Clears the marks of reported pageblocks that the caller owns and will not allocate.
    pub(crate) fn withdraw_reported(&self, section: SectionRef<'_>, owned: u64) {
        self.frames.wakeup().note_withdrawn(section.forget_reported(owned));
    }
}
