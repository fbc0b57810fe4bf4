//! Implements the block state, which says who owns a pageblock.
//!
//! | value | meaning |
//! |---|---|
//! | `0` | not live: its `free` bit is set, or a token or an operation in flight owns it, or it is absent |
//! | `SEEN` | as `0`, and the reporter has seen it free; its next use overwrites the mark |
//! | `REPORTING` | the reporter owns it while the host works on it |
//! | `DESCRIPTORS` | it holds the descriptors of its section, and cannot be allocated while it is present |
//! | `DESCRIPTORS\|ISOLATED` | as `DESCRIPTORS`, under an isolation token or not online |
//! | `HOLE` | it is no RAM and is not announced, in a section with boot memory |
//! | `LIVE` | divided: its frame bitmap says which of its frames are free |
//! | `LIVE\|WHOLE` | allocated as a whole, or freed as a whole since then: its `free` bit says which; the words of its bitmap, if it has one, are held, and it records all frames as taken |
//! | `LIVE\|WHOLE\|SEEN` | as `LIVE\|WHOLE`, and the reporter has seen it free; its next use clears the mark |
//! | `LIVE\|PARTLY_FREED` | was allocated as a whole, and a part of it was freed; the words of its bitmap are still held |
//! | `LIVE…\|ISOLATED` | as without `ISOLATED`, under an isolation token: no frame of it can be allocated |
//! | `LIVE…\|LENT` | as without `LENT`, and one lender has lent some of its frames to the host (see `frames/lent/memory.rs`) |
//! | `LIVE…\|LENT\|SHARED` | as without `SHARED`, and several lenders have; it keeps the mark until it is wholly free |
//! | `LIVE…\|POISON` | as without `POISON`, and some of its frames are poisoned (see `frames/poison/mod.rs`): it stays live when its last frame is freed |
//!
//! Only the owner of a pageblock changes a block state without `LIVE`, by a plain store. The only
//! exception is the mark `SEEN`, which the reporter sets without being the owner; any store of the
//! owner may overwrite this mark. All others change only a block state with `LIVE`, by
//! compare-exchange. The CPU that holds all words of a divided pageblock's bitmap may become the
//! pageblock's owner.
//!
//! The block state of a pageblock is *stale* if it is `LIVE|WHOLE`, with or without flags, and the
//! pageblock's `free` bit is set: see `frames/whole/stale.rs`.

use crate::sync::{AtomicU8, Ordering, mutant};

/// A pageblock's block state; see the table at the top of this file.
#[repr(transparent)]
pub(crate) struct AtomicBlockState(AtomicU8);

/// The value that a block state had when it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockState(u8);

/// The pageblock is divided, or allocated as a whole.
const LIVE: u8 = 1 << 7;
/// An isolation token has flagged the pageblock.
const ISOLATED: u8 = 1 << 6;
/// Some frames of the pageblock are poisoned, so a free must check for them.
const POISON: u8 = 1 << 5;
/// Of a block state with [`LIVE`]: the pageblock is allocated as a whole.
const WHOLE: u8 = 1 << 4;
/// Of a block state with [`LIVE`]: the pageblock was allocated as a whole, parts of it were freed,
/// and the words of its bitmap are still held.
const PARTLY_FREED: u8 = 1 << 3;
/// Of a block state with [`LIVE`]: the host was given some of the pageblock's frames.
const LENT: u8 = 1 << 2;
/// Of a block state with [`LENT`]: more than one lender has given the host some of the pageblock's
/// frames, so that no lender knows when the host has returned all of them.
const SHARED: u8 = 1 << 0;
/// Of a block state without [`LIVE`]: the reporter owns the pageblock, and the host may be working
/// on it.
const REPORTING: u8 = 1 << 2;
/// Of a block state without [`LIVE`], or of [`LIVE`] and [`WHOLE`]: the reporter has seen the
/// pageblock free.
const SEEN: u8 = 1 << 1;
/// Of a block state without [`LIVE`]: the pageblock holds the kernel's descriptors of its own
/// section.
const DESCRIPTORS: u8 = 1 << 0;
/// The only bit of a block state: the pageblock is no RAM, in a section with boot memory.
const HOLE: u8 = 1 << 4;

impl BlockState {
    /// Returns whether the pageblock is divided, or allocated as a whole.
    pub(crate) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    /// Returns whether the pageblock is allocated as a whole, and no part of it was freed.
    pub(crate) fn is_whole(self) -> bool {
        self.0 & (LIVE | WHOLE) == LIVE | WHOLE
    }

    /// Returns whether the pageblock was allocated as a whole, no part of it was freed, and the
    /// block state has no flag.
    pub(crate) fn is_unflagged_whole(self) -> bool {
        self.0 == LIVE | WHOLE
    }

    /// Returns whether the pageblock is not live and has no mark but that of
    /// [`mark_seen`](AtomicBlockState::mark_seen).
    pub(crate) fn is_unused(self) -> bool {
        self.0 & !SEEN == 0
    }

    /// Returns whether the pageblock was allocated as a whole, parts of it were freed, and the
    /// words of its bitmap are still held.
    pub(crate) fn is_partly_freed(self) -> bool {
        self.0 & (LIVE | PARTLY_FREED) == LIVE | PARTLY_FREED
    }

    /// Returns whether an isolation token has flagged the pageblock, or the pageblock holds
    /// descriptors and is not online.
    pub(crate) fn is_isolated(self) -> bool {
        self.0 & ISOLATED != 0
    }

    /// Returns whether some frames of the pageblock are poisoned.
    pub(crate) fn has_poison(self) -> bool {
        mutant!("a free does not look for poison" => return false);
        self.0 & POISON != 0
    }

    /// Returns whether a CPU that holds all words of the pageblock's bitmap may take the pageblock.
    pub(crate) fn may_be_owned(self) -> bool {
        mutant!("last free does not look at isolation" => return self.is_live());
        self.0 & !(LENT | SHARED) == LIVE
    }

    /// Returns whether the reporter owns the pageblock, so that the host may be working on it.
    pub(crate) fn is_reporting(self) -> bool {
        self.0 & (LIVE | REPORTING) == REPORTING
    }

    /// Returns whether the pageblock holds the kernel's descriptors of its own section.
    pub(crate) fn holds_descriptors(self) -> bool {
        self.0 & (LIVE | DESCRIPTORS) == DESCRIPTORS
    }

    /// Returns whether the pageblock is no RAM, in a section with boot memory.
    pub(crate) fn is_hole(self) -> bool {
        self.0 == HOLE
    }

    /// Returns whether the pageblock is live and the host was given some of its frames.
    pub(crate) fn is_lent(self) -> bool {
        self.0 & (LIVE | LENT) == LIVE | LENT
    }
}

impl AtomicBlockState {
    #[cfg(loom)]
    pub(crate) fn new() -> AtomicBlockState {
        AtomicBlockState(AtomicU8::new(0))
    }

    /// Returns the block state. `SeqCst`: Acquire pairs with the Release of the last change, and a
    /// free that could not take the pageblock checks with this load whether the isolation has
    /// ended.
    #[inline]
    pub(crate) fn load(&self) -> BlockState {
        BlockState(self.0.load(Ordering::SeqCst))
    }

    /// Records whether the pageblock holds descriptors. The pageblock must not be online. For the
    /// control path only. Release: what the caller did before happens before the accesses of a
    /// reader that finds this state.
    pub(crate) fn set_holds_descriptors(&self, holds: bool) {
        self.0.store(if holds { DESCRIPTORS | ISOLATED } else { 0 }, Ordering::Release);
    }

    /// Records that the pageblock is no RAM, in a section with boot memory. For the control path only.
    /// Relaxed: only the control path reads and writes the block state of memory that is not present.
    pub(crate) fn set_hole(&self) {
        self.0.store(HOLE, Ordering::Relaxed);
    }

    /// Clears the mark of a hole, if the pageblock has it. For the control path only. Relaxed: only
    /// the control path reads and writes the block state of memory that is not present.
    pub(crate) fn clear_hole_mark(&self) {
        if self.load().is_hole() {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Makes the pageblock live and divided. Only for the owner, while all words of its bitmap are
    /// held. Release publishes the bitmap.
    pub(crate) fn set_divided(&self) {
        self.set(LIVE);
    }

    /// Makes a pageblock with poisoned frames live and divided: see
    /// [`set_divided`](Self::set_divided).
    pub(crate) fn set_divided_with_poison(&self) {
        self.set(LIVE | POISON);
    }

    /// Makes the pageblock live, allocated as a whole. Only for the owner, while all words of its
    /// bitmap, if it has one, are held. Release publishes the bitmap.
    #[inline]
    pub(crate) fn set_whole(&self) {
        self.set(LIVE | WHOLE);
    }

    #[inline]
    fn set(&self, state: u8) {
        #[cfg(not(loom))]
        self.0.store(state, Ordering::Release);
        // After a plain store, loom would still let a load find the earlier mark of `mark_seen`.
        #[cfg(loom)]
        self.0.swap(state, Ordering::Release);
    }

    /// Changes a live block state to the value that `next` returns for it. Returns the previous
    /// state, or `None` if `next` returns `None` or the block state is not live.
    ///
    /// `SeqCst`: Release, so that what the caller did before happens before the accesses of a CPU
    /// that finds the change; Acquire, so that earlier changes happen before what the caller does
    /// next. A call that ends an isolation then reads the bitmap, and a call that frees the last
    /// frame then reads the isolation, so that at least one of the two sees the other.
    #[inline(always)]
    fn change(&self, next: impl Fn(u8) -> Option<u8>) -> Option<BlockState> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let changed = next(now).filter(|_| now & LIVE != 0)?;
            match self.0.compare_exchange_weak(now, changed, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Some(BlockState(now)),
                Err(actual) => now = actual,
            }
        }
    }

    /// Takes a divided pageblock as a whole. The caller holds all words of its bitmap, and all its
    /// frames are free. Returns false if the pageblock is isolated or has poison.
    pub(crate) fn take_with_held_words(&self) -> bool {
        self.change(|now| BlockState(now).may_be_owned().then_some(0)).is_some()
    }

    /// Takes back a pageblock that was allocated as a whole. Returns whether the pageblock was
    /// isolated: if so, its token owns it now. Returns `None`, and changes nothing, if the
    /// pageblock is not allocated as a whole or has poison.
    #[inline]
    pub(crate) fn take_back_whole(&self) -> Option<bool> {
        let is_whole = |now: u8| now & (LIVE | WHOLE | POISON) == LIVE | WHOLE;
        self.change(|now| is_whole(now).then_some(0)).map(BlockState::is_isolated)
    }

    /// Takes an isolated pageblock for its token. The caller must have seen that no frame of the
    /// pageblock is in use any more. Returns false if the pageblock is not live or not isolated.
    pub(crate) fn take_drained(&self) -> bool {
        self.change(|now| (now & ISOLATED != 0).then_some(0)).is_some()
    }

    /// Records that a part of a pageblock that was allocated as a whole is being freed. The caller
    /// has made sure that the pageblock has a bitmap. Returns the previous state.
    pub(crate) fn mark_partly_freed(&self) -> Option<BlockState> {
        self.change(|now| {
            let partly_freed = now & !(WHOLE | SEEN) | PARTLY_FREED;
            Some(if now & WHOLE == 0 { now } else { partly_freed })
        })
    }

    /// Clears the mark of freed parts, and returns the previous state: the caller must then open
    /// the words of the bitmap. Returns `None` if the pageblock is isolated, or if another call has
    /// cleared the mark.
    pub(crate) fn clear_partly_freed(&self) -> Option<BlockState> {
        let is_clearable = |now: u8| now & (PARTLY_FREED | ISOLATED) == PARTLY_FREED;
        self.change(|now| is_clearable(now).then_some(now & !PARTLY_FREED))
    }

    /// Marks a live pageblock as having poisoned frames, so that later frees check which frames
    /// these are. Returns the previous state.
    pub(crate) fn poison(&self) -> Option<BlockState> {
        self.change(|now| Some(now | POISON))
    }

    /// Clears the mark of poisoned frames.
    pub(crate) fn heal(&self) {
        self.0.fetch_and(!POISON, Ordering::AcqRel);
    }

    /// Flags a live pageblock as isolated, and returns the outcome.
    pub(crate) fn isolate(&self) -> IsolateOutcome {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            mutant!("isolation of any block state" => {
                if now & (LIVE | DESCRIPTORS | REPORTING) == 0 {
                    self.0.fetch_or(ISOLATED, Ordering::AcqRel);
                    return IsolateOutcome::Flagged { open: false };
                }
            });
            let next = match now {
                _ if now & (LIVE | REPORTING) == REPORTING => return IsolateOutcome::Reporting,
                DESCRIPTORS => DESCRIPTORS | ISOLATED,
                _ if now & (LIVE | DESCRIPTORS) == 0 => return IsolateOutcome::InFlight,
                _ if now & ISOLATED != 0 => return IsolateOutcome::HeldByAnother,
                _ => now | ISOLATED,
            };
            // AcqRel: Acquire as in `change`; Release, so that a CPU that sees the flag also sees
            // that the pageblock is drained.
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(DESCRIPTORS) => return IsolateOutcome::HoldsDescriptors,
                Ok(_) => {
                    return IsolateOutcome::Flagged { open: now & (WHOLE | PARTLY_FREED) == 0 };
                }
                Err(actual) => now = actual,
            }
        }
    }

    /// Ends the isolation, and returns the previous block state. If parts of the pageblock were
    /// freed, the caller must open the words of its bitmap. If the previous state is 0, the caller
    /// owns the pageblock, and what the caller does next happens after the call that drained the
    /// pageblock. `SeqCst`: as in [`change`](Self::change).
    pub(crate) fn release(&self) -> BlockState {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let partly_freed = if now & LIVE != 0 { PARTLY_FREED } else { 0 };
            let next = now & !(ISOLATED | partly_freed);
            match self.0.compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return BlockState(now),
                Err(actual) => now = actual,
            }
        }
    }

    /// Marks a free pageblock as seen by the reporter. Returns whether it was marked already: if
    /// so, the pageblock has been free since then. Relaxed: the mark only helps to choose what to
    /// report.
    pub(crate) fn mark_seen(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        if now == 0 || BlockState(now).is_unflagged_whole() {
            // An exchange that fails needs no action: the pageblock is no longer free.
            let _ = self.0.compare_exchange(now, now | SEEN, Ordering::Relaxed, Ordering::Relaxed);
        }
        has_seen_mark(now)
    }

    /// Returns whether the pageblock is free and has the mark of [`mark_seen`](Self::mark_seen).
    pub(crate) fn was_seen(&self) -> bool {
        has_seen_mark(self.0.load(Ordering::Relaxed))
    }

    /// Clears the mark of [`mark_seen`](Self::mark_seen) from a free pageblock. Relaxed: as for
    /// `mark_seen`.
    pub(crate) fn forget_seen(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if has_seen_mark(now) {
            // An exchange that fails needs no action: the pageblock is no longer free.
            let _ = self.0.compare_exchange(now, now & !SEEN, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Marks a live pageblock of which the host will be given some frames. `is_first` says that the
    /// lender has lent no other frame of the pageblock. Returns false if the pageblock is not live.
    /// The caller passes a fence next (see `frames/lent/pins.rs`).
    pub(crate) fn lend(&self, is_first: bool) -> bool {
        let shared = if is_first { SHARED } else { 0 };
        self.change(|now| Some(if now & LENT == 0 { now | LENT } else { now | shared })).is_some()
    }

    /// Clears the mark of [`lend`](Self::lend), for a lender that has lent no frame of the pageblock
    /// any more but still owns one. The mark stays if there was another lender.
    pub(crate) fn end_lending(&self) {
        self.change(|now| {
            mutant!("the end of a loan ends those of other lenders" => return Some(now & !LENT));
            (now & (LENT | SHARED) == LENT).then_some(now & !LENT)
        });
    }

    /// Marks the pageblock as being reported: the host will work on it. Only for the owner.
    /// Release: the claim of the pageblock happens before the accesses of a reset that finds the
    /// mark.
    pub(crate) fn mark_reporting(&self) {
        self.0.store(REPORTING, Ordering::Release);
    }

    /// Clears the mark of a pageblock that is being reported. Returns false if it had no such mark.
    /// AcqRel: Acquire pairs with the Release of `mark_reporting`; Release, so that the host's work
    /// happens before a later isolation.
    pub(crate) fn clear_reporting(&self) -> bool {
        self.0.compare_exchange(REPORTING, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Returns whether a block state has the mark of [`AtomicBlockState::mark_seen`].
fn has_seen_mark(state: u8) -> bool {
    matches!(state, SEEN | FREED_WHOLE_AND_SEEN)
}

/// The block state of a pageblock that was freed as a whole, and that the reporter has seen free.
const FREED_WHOLE_AND_SEEN: u8 = LIVE | WHOLE | SEEN;

/// The outcome of an attempt to isolate a pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IsolateOutcome {
    /// The pageblock was wholly free, and the token owns it now.
    Owned,
    /// The pageblock is in use, and is flagged now. If the words of its bitmap may be open, the
    /// caller must flag the words as well.
    Flagged {
        /// Whether the words may be open, that is, not held.
        open: bool,
    },
    /// The pageblock holds the descriptors of its section, and is removed together with the
    /// section.
    HoldsDescriptors,
    /// Another token owns the pageblock.
    HeldByAnother,
    /// The reporter owns the pageblock, and the host may be working on it.
    Reporting,
    /// Another CPU is allocating or freeing the pageblock at this moment, so the caller must try
    /// again.
    InFlight,
}
