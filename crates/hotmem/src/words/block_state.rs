//! Implements the block state, which says who owns a pageblock.
//!
//! | value | meaning |
//! |---|---|
//! | `0` | owned: its `free` bit is set, or a token or an operation in flight holds it, or it is absent |
//! | `SEEN` | the same, and the reporter has seen it free; the next use overwrites the mark |
//! | `OUT` | the reporter holds it while the host works on it |
//! | `KEPT` | it holds the descriptors of its section, and cannot be allocated while it is present |
//! | `KEPT\|ISOLATED` | the same under an isolation token, or not online |
//! | `HOLE` | it is no RAM, nothing was ever announced or added there, and its section has boot memory |
//! | `LIVE` | divided: the frame bitmap says which of its frames are free |
//! | `LIVE\|WHOLE` | allocated as a whole; the words of its bitmap, if it has one, are held |
//! | `LIVE\|PARTED` | a part of such an allocation was freed; the words are still held |
//! | with `ISOLATED` | the same under an isolation token: no frame of it can be allocated |
//! | with `LENT` | the same, and the host was given some of its frames since it was last wholly free (see `frames/pins.rs`) |
//! | with `POISON` | some of its frames are poisoned (see `frames/poison.rs`): it never becomes owned by a free |
//!
//! Only the owner changes a block state without `LIVE`, by a plain store, except for the reporter's
//! mark, which any such store may overwrite. Everybody else uses compare-exchange from a value with
//! `LIVE`. A pageblock that is divided becomes owned by the CPU that holds all words of its bitmap.

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
/// Some of its frames are poisoned: a free must check which.
const POISON: u8 = 1 << 5;
/// Of a block state with [`LIVE`]: the pageblock is allocated as a whole.
const WHOLE: u8 = 1 << 4;
/// Of a block state with [`LIVE`]: parts of an allocation of the whole pageblock were freed, and
/// the words of the bitmap are still held.
const PARTED: u8 = 1 << 3;
/// Of a block state with [`LIVE`]: the host was given some of the pageblock's frames.
const LENT: u8 = 1 << 2;
/// Of a block state without [`LIVE`]: the reporter has the pageblock, and the host may be working
/// on it.
const OUT: u8 = 1 << 2;
/// Of a block state without [`LIVE`]: the reporter has seen the pageblock free.
const SEEN: u8 = 1 << 1;
/// Of a block state without [`LIVE`]: the pageblock holds the kernel's descriptors of its own
/// section.
const KEPT: u8 = 1 << 0;
/// A whole block state: the pageblock is no RAM, and its section has boot memory.
const HOLE: u8 = 1 << 4;

impl BlockState {
    /// Returns whether the pageblock is divided, or allocated as a whole.
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    /// Returns whether it was allocated as a whole, and no part of it was freed.
    pub(crate) fn is_whole(self) -> bool {
        self.0 & (LIVE | WHOLE) == LIVE | WHOLE
    }

    /// Returns whether only parts of an allocation of the whole pageblock were freed, so that its
    /// words are held.
    pub(crate) fn is_partly_freed(self) -> bool {
        self.0 & (LIVE | PARTED) == LIVE | PARTED
    }

    /// Returns whether a token has flagged the pageblock, or it holds descriptors and is not
    /// online.
    pub(crate) fn is_isolated(self) -> bool {
        self.0 & ISOLATED != 0
    }

    /// Returns whether some of its frames are poisoned.
    pub(crate) fn has_poison(self) -> bool {
        mutant!("a free does not look for poison" => return false);
        self.0 & POISON != 0
    }

    /// Returns whether a CPU that holds all words of its bitmap may take it.
    pub(crate) fn may_be_owned(self) -> bool {
        mutant!("last free does not look at isolation" => return self.is_live());
        self.0 & !LENT == LIVE
    }

    /// Returns whether it is out for reporting: the host may be working on it.
    pub(crate) fn is_out(self) -> bool {
        self.0 & (LIVE | OUT) == OUT
    }

    /// Returns whether it holds the kernel's descriptors of its own section.
    pub(crate) fn is_kept(self) -> bool {
        self.0 & (LIVE | KEPT) == KEPT
    }

    /// Returns whether it is no RAM, in a section with boot memory.
    pub(crate) fn is_hole(self) -> bool {
        self.0 == HOLE
    }

    /// Returns whether it is live and the host was given some of its frames.
    pub(crate) fn is_lent(self) -> bool {
        self.0 & (LIVE | LENT) == LIVE | LENT
    }
}

impl AtomicBlockState {
    #[cfg(loom)]
    pub(crate) fn new() -> AtomicBlockState {
        AtomicBlockState(AtomicU8::new(0))
    }

    /// Returns the block state. `SeqCst`: Acquire pairs with the Release of the last change. Beyond
    /// that, a free that could not take the pageblock checks whether its isolation has ended.
    #[inline]
    pub(crate) fn load(&self) -> BlockState {
        BlockState(self.0.load(Ordering::SeqCst))
    }

    /// Records that the pageblock, which is not online, holds descriptors from now on, or no longer
    /// does. For the control path only. Release: what the caller did before happens before the
    /// accesses of a reader that finds this state.
    pub(crate) fn keep(&self, kept: bool) {
        self.0.store(if kept { KEPT | ISOLATED } else { 0 }, Ordering::Release);
    }

    /// Records that the pageblock is no RAM while its section has some. For boot only. Relaxed:
    /// only the control path reads it.
    #[cfg(not(loom))]
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

    /// Makes the pageblock live and divided. Owner only; the words of its bitmap are held. Release
    /// publishes the bitmap.
    pub(crate) fn set_divided(&self) {
        self.set(LIVE);
    }

    /// Does the same for a pageblock of which some frames are poisoned.
    pub(crate) fn set_divided_with_poison(&self) {
        self.set(LIVE | POISON);
    }

    /// Makes the pageblock live, allocated as a whole. Owner only; the words of its bitmap, if it
    /// has one, are held. Release publishes the bitmap.
    #[inline]
    pub(crate) fn set_whole(&self) {
        self.set(LIVE | WHOLE);
    }

    #[inline]
    fn set(&self, state: u8) {
        #[cfg(not(loom))]
        self.0.store(state, Ordering::Release);
        // After a plain store, loom would still let a load find the earlier mark of `see`.
        #[cfg(loom)]
        self.0.swap(state, Ordering::Release);
    }

    /// Changes a live block state to what `next` returns for it. Returns the state before, or
    /// `None` if `next` returns `None` or the block state is not live.
    ///
    /// `SeqCst`: AcqRel, so that what the caller did before happens before the accesses of a CPU
    /// that finds the change, and earlier changes happen before what the caller does next. Beyond
    /// that, a call that ends an isolation reads the bitmap next, and a call that frees the last
    /// frame reads the isolation.
    #[inline(always)]
    fn change(&self, next: impl Fn(u8) -> Option<u8>) -> Option<BlockState> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let changed = next(now).filter(|_| now & LIVE != 0)?;
            match self.0.compare_exchange_weak(now, changed, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Some(BlockState(now)),
                Err(seen) => now = seen,
            }
        }
    }

    /// Takes a divided pageblock as a whole. The caller holds all words of its bitmap, and all its
    /// frames are free. Returns false if the pageblock is isolated or has poison.
    pub(crate) fn own_held(&self) -> bool {
        self.change(|now| BlockState(now).may_be_owned().then_some(0)).is_some()
    }

    /// Takes back a pageblock that was allocated as a whole. Returns whether it was isolated: if
    /// so, its token owns it now. Returns `None`, and changes nothing, if the pageblock is not
    /// allocated as a whole or has poison.
    #[inline]
    pub(crate) fn own_whole(&self) -> Option<bool> {
        let is_whole = |now: u8| now & (LIVE | WHOLE | POISON) == LIVE | WHOLE;
        self.change(|now| is_whole(now).then_some(0)).map(BlockState::is_isolated)
    }

    /// Takes an isolated pageblock for its token, whose holder has seen that no frame of it is in
    /// use any more. Returns false if the pageblock is not both live and isolated.
    pub(crate) fn take_drained(&self) -> bool {
        self.change(|now| (now & ISOLATED != 0).then_some(0)).is_some()
    }

    /// Records that a part of an allocation of the whole pageblock is being freed; the caller has
    /// made sure that it has a bitmap. Returns the state before.
    pub(crate) fn part(&self) -> Option<BlockState> {
        self.change(|now| {
            let parted = now & !WHOLE | PARTED;
            Some(if now & WHOLE == 0 { now } else { parted })
        })
    }

    /// Ends the hold of a pageblock of which parts were freed, and returns the state before: the
    /// caller must then open the words of its bitmap. Returns `None` if the pageblock is isolated,
    /// or if another call has ended the hold.
    pub(crate) fn unpart(&self) -> Option<BlockState> {
        let may = |now: u8| now & (PARTED | ISOLATED) == PARTED;
        self.change(|now| may(now).then_some(now & !PARTED))
    }

    /// Marks a live pageblock as having poisoned frames, so that later frees check which frames
    /// these are. Returns the state before.
    pub(crate) fn poison(&self) -> Option<BlockState> {
        self.change(|now| Some(now | POISON))
    }

    /// Clears the mark of poisoned frames.
    pub(crate) fn heal(&self) {
        self.0.fetch_and(!POISON, Ordering::AcqRel);
    }

    /// Flags a live pageblock as isolated, and returns how that ended.
    pub(crate) fn isolate(&self) -> Capture {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            mutant!("isolation of any block state" => if now & (LIVE | KEPT | OUT) == 0 {
                self.0.fetch_or(ISOLATED, Ordering::AcqRel);
                return Capture::Flagged { open: false };
            });
            let next = match now {
                _ if now & (LIVE | OUT) == OUT => return Capture::Reporting,
                KEPT => KEPT | ISOLATED,
                _ if now & (LIVE | KEPT) == 0 => return Capture::InFlight,
                _ if now & ISOLATED != 0 => return Capture::HeldByAnother,
                _ => now | ISOLATED,
            };
            // AcqRel: Acquire as in `change`, Release so that a drained state is seen with the
            // flag.
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(KEPT) => return Capture::Kept,
                Ok(_) => return Capture::Flagged { open: now & (WHOLE | PARTED) == 0 },
                Err(seen) => now = seen,
            }
        }
    }

    /// Ends the isolation, and returns the block state before. If parts of the pageblock were
    /// freed, the caller must open the words of its bitmap. `SeqCst`: as in
    /// [`change`](Self::change). A caller that finds 0 owns the pageblock, and what it does next
    /// happens after the call that drained the pageblock.
    pub(crate) fn release(&self) -> BlockState {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let parted = if now & LIVE != 0 { PARTED } else { 0 };
            let next = now & !(ISOLATED | parted);
            match self.0.compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return BlockState(now),
                Err(seen) => now = seen,
            }
        }
    }

    /// Marks a free pageblock as seen. Returns whether it was marked already: if so, it has been
    /// free since then. Relaxed: the mark is a guess at what is worth reporting, and nothing
    /// depends on it.
    pub(crate) fn see(&self) -> bool {
        match self.0.compare_exchange(0, SEEN, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(now) => now == SEEN,
        }
    }

    /// Returns whether the pageblock is free and has the mark of [`see`](Self::see).
    pub(crate) fn was_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SEEN
    }

    /// Clears the mark of [`see`](Self::see) from a free pageblock. Relaxed: as for `see`.
    pub(crate) fn forget_seen(&self) {
        // If it is anything else, the reporter has not seen it free.
        let _ = self.0.compare_exchange(SEEN, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Marks a live pageblock of which the host will be given some frames. Returns false if it is
    /// not live. A fence follows (see `frames/pins.rs`).
    pub(crate) fn lend(&self) -> bool {
        self.change(|now| Some(now | LENT)).is_some()
    }

    /// Marks the pageblock as out: the host will work on it. Owner only. Release: the claim happens
    /// before a reset that finds the mark.
    pub(crate) fn send_out(&self) {
        self.0.store(OUT, Ordering::Release);
    }

    /// Marks the pageblock as no longer out. Returns false if it was not out. AcqRel: as in
    /// `send_out`, and the host's work happens before a later isolation.
    pub(crate) fn take_back(&self) -> bool {
        self.0.compare_exchange(OUT, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// How a token's attempt to capture a pageblock ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    /// It was wholly free, and the token owns it now.
    Owned,
    /// It is in use, and is flagged now. If the words of its bitmap may be open, the caller must
    /// flag them as well.
    Flagged {
        /// Whether the words may be open, that is, not held.
        open: bool,
    },
    /// It holds the descriptors of its section, and leaves with the section.
    Kept,
    /// Another token holds it.
    HeldByAnother,
    /// The reporter holds it, and the host is working on it.
    Reporting,
    /// Another CPU is allocating or freeing it at this moment: try again.
    InFlight,
}
