//! Implements the block state: the count of a pageblock's free frames, and who holds the pageblock.
//!
//! | value | meaning |
//! |---|---|
//! | `0` | owned: its `free` bit is set, or a token or an operation in flight holds it, or it is absent |
//! | `SEEN` | the same, and the reporter has seen it free; the next use overwrites the mark |
//! | `OUT` | the reporter holds it while the host works on it |
//! | `KEPT` | it holds the descriptors of its section, and cannot be allocated while it is present |
//! | `KEPT\|ISOLATED` | the same under an isolation token, or not online |
//! | `HOLE` | it is no RAM, nothing was ever announced or added there, and its section has boot memory |
//! | `LIVE\|n` | divided, or allocated as a whole (n = 0); n frames are claimable |
//! | `LIVE\|ISOLATED\|n` | the same under an isolation token: no credit is granted any more |
//! | `LIVE` with `LENT` | the same, and the host was given some of its frames since it was last wholly free (see `frames/pins.rs`) |
//! | with `POISON` | some of its frames are poisoned (see `frames/poison.rs`): it never becomes owned by a free |
//!
//! All else relies on this invariant: *count + credits of allocations in flight + bits of frees in
//! flight = free bits in the bitmap*. So a count of all frames proves that no operation is in
//! flight. Only the owner changes a block state without `LIVE`, by a plain store, except for the
//! reporter's mark, which any such store may overwrite. Everybody else uses compare-exchange from a
//! value with `LIVE`.

use crate::geometry::PAGEBLOCK_FRAMES;
use crate::sync::{AtomicU16, Ordering, mutant};

/// A pageblock's block state; see the table at the top of this file.
#[repr(transparent)]
pub(crate) struct AtomicBlockState(AtomicU16);

/// The value that a block state had when it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockState(u16);

/// The pageblock is live: divided, or allocated as a whole.
const LIVE: u16 = 1 << 15;
/// An isolation token has flagged the pageblock.
const ISOLATED: u16 = 1 << 14;
/// Some of its frames are poisoned: a free must check which.
const POISON: u16 = 1 << 13;
/// Of a block state without [`LIVE`]: the reporter has seen the pageblock free.
const SEEN: u16 = 1 << 12;
/// Of a block state without [`LIVE`]: the reporter has the pageblock, and the host may be working
/// on it.
const OUT: u16 = 1 << 11;
/// Of a block state with [`LIVE`]: the host was given some of the pageblock's frames.
const LENT: u16 = 1 << 11;
/// Of a block state without [`LIVE`]: the pageblock holds the kernel's descriptors of its own
/// section.
const KEPT: u16 = 1 << 10;
/// A whole block state: the pageblock is no RAM, and its section has boot memory.
const HOLE: u16 = 1;
/// The count of a live pageblock whose frames are all free.
#[allow(clippy::cast_possible_truncation, reason = "512 at the most")]
const ALL: u16 = PAGEBLOCK_FRAMES as u16;

const _: () = assert!(ALL as usize == PAGEBLOCK_FRAMES && ALL < KEPT);

/// Returns the count in a block state, without its flags.
const fn count(state: u16) -> u16 {
    state & (KEPT - 1)
}

fn grants_credits(state: u16) -> bool {
    mutant!("partial is the truth" => return true);
    state & (LIVE | ISOLATED) == LIVE
}

fn is_isolated(state: u16) -> bool {
    mutant!("last free does not look at isolation" => return false);
    state & ISOLATED != 0
}

fn has_poison(state: u16) -> bool {
    mutant!("a free does not look for poison" => return false);
    state & POISON != 0
}

impl BlockState {
    /// Returns whether the pageblock is divided, or allocated as a whole.
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    /// Returns whether the pageblock is live and none of its frames is poisoned.
    #[inline]
    pub(crate) fn is_live_without_poison(self) -> bool {
        self.0 & (LIVE | POISON) == LIVE
    }

    /// Returns whether a token has flagged the pageblock, or it holds descriptors and is not
    /// online.
    pub(crate) fn is_isolated(self) -> bool {
        self.0 & ISOLATED != 0
    }

    /// Returns whether some of its frames are poisoned.
    pub(crate) fn has_poison(self) -> bool {
        self.0 & POISON != 0
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

    /// Returns for how many frames a credit would be granted.
    #[inline]
    pub(crate) fn grantable(self) -> u16 {
        if self.0 & (LIVE | ISOLATED) == LIVE { count(self.0) } else { 0 }
    }

    /// Returns the number of free frames of a live pageblock.
    #[inline]
    pub(crate) fn free_frames(self) -> usize {
        count(self.0).into()
    }

    /// Returns the number of frames of a live pageblock that are not free.
    pub(crate) fn used_frames(self) -> usize {
        PAGEBLOCK_FRAMES.saturating_sub(self.free_frames())
    }

    /// Returns whether every frame of a live pageblock is free.
    pub(crate) fn is_all_free(self) -> bool {
        count(self.0) == ALL
    }

    /// Returns whether it is divided though every frame is free, and neither isolated nor poisoned.
    pub(crate) fn is_split_without_need(self) -> bool {
        self.0 == LIVE | ALL
    }
}

/// What a free did to its pageblock's block state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// Searches find the pageblock as before.
    Some,
    /// The pageblock had no free frame before: the caller must make it findable.
    First,
    /// Every frame is free, and the caller now owns the pageblock: it must publish it.
    Last,
    /// Every frame is free under an isolation token, which now owns the pageblock.
    Drained,
    /// Nothing has changed: some frames of the pageblock are poisoned, and the caller must first
    /// check whether it frees one of these.
    Poisoned,
}

/// A change of a pageblock's owner or findability that a free is about to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    /// The pageblock goes from no free frame to some.
    First,
    /// All frames of the pageblock become free.
    Last,
}

impl AtomicBlockState {
    #[cfg(loom)]
    pub(crate) fn new() -> AtomicBlockState {
        AtomicBlockState(AtomicU16::new(0))
    }

    /// Returns the block state. Acquire pairs with the Release of the last change: a drained block
    /// state shows all frees done.
    #[inline]
    pub(crate) fn load(&self) -> BlockState {
        BlockState(self.0.load(Ordering::Acquire))
    }

    /// Returns the block state by a read-modify-write, so that a later change sees all that the
    /// caller did before. AcqRel: Release pairs with the Acquire of that change.
    pub(crate) fn latest(&self) -> BlockState {
        BlockState(self.0.fetch_or(0, Ordering::AcqRel))
    }

    /// Records that the pageblock, which is not online, holds descriptors from now on, or no longer
    /// does. For the control path only. Release: a reader that finds this comes after what was done
    /// before.
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
    pub(crate) fn fill_hole(&self) {
        if self.load().is_hole() {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Makes the pageblock live with `free` free frames. Owner only. Release publishes the bitmap.
    pub(crate) fn set_live(&self, free: usize) {
        self.set(LIVE | narrow(free));
    }

    /// Does the same for a pageblock of which some frames are poisoned.
    pub(crate) fn set_live_with_poison(&self, free: usize) {
        self.set(LIVE | POISON | narrow(free));
    }

    fn set(&self, state: u16) {
        #[cfg(not(loom))]
        self.0.store(state, Ordering::Release);
        // After a plain store, loom would still let a load find the earlier mark of `see`.
        #[cfg(loom)]
        self.0.swap(state, Ordering::Release);
    }

    /// Takes a credit for `frames` frames: the right to take that many bits of the bitmap.
    ///
    /// Acquire pairs with the Release of [`set_live`](Self::set_live) and of the frees that made
    /// the count.
    #[inline]
    pub(crate) fn credit(&self, frames: u16) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while grants_credits(now) && count(now) >= frames {
            match self.0.compare_exchange_weak(
                now,
                now - frames,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Does what [`give`](Self::give) does, if the pageblock had free frames before and has some in
    /// use after: then neither its owner nor what searches find changes. Returns false, and changes
    /// nothing, in other cases.
    #[inline]
    pub(crate) fn give_within(&self, frames: u16) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (LIVE | POISON) == LIVE && count(now) != 0 && count(now) + frames < ALL {
            match self.0.compare_exchange_weak(
                now,
                now + frames,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Returns whether exactly one frame of a live pageblock is in use, as far as a single load can
    /// tell.
    #[inline]
    pub(crate) fn is_all_but_one_free(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & LIVE != 0 && count(now) + 1 == ALL
    }

    /// Does what [`give`](Self::give) does for the last frame in use, and keeps the pageblock
    /// divided. Returns false, and changes nothing, if other frames are in use as well, or it is
    /// isolated or has poison.
    #[inline]
    pub(crate) fn give_last(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (LIVE | POISON | ISOLATED) == LIVE && count(now) + 1 == ALL {
            // All of it is free, so the host has none of it.
            let next = LIVE | ALL;
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Gives back `frames` frames whose bits are set already (or a credit that found no run).
    /// `honest`: none of them is poisoned, as far as was known after their bits had been set.
    ///
    /// Calls `at_edge` just before the pageblock leaves a state in which it could not be found
    /// ([`Edge::First`]), or would leave the allocator's hands ([`Edge::Last`]). In the second case
    /// `at_edge` returns whether to keep it divided instead.
    ///
    /// Returns `None` if the pageblock is not live or the count would exceed its size: the caller
    /// freed frames that it did not own. AcqRel: Release pairs with the credit of the next
    /// allocation, and Acquire makes the last free come after all others, so that its publish
    /// covers them.
    #[inline]
    pub(crate) fn give(
        &self,
        frames: u16,
        honest: bool,
        mut at_edge: impl FnMut(Edge) -> bool,
    ) -> Option<Given> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & LIVE == 0 || frames > ALL - count(now) {
                return None;
            }
            if !honest && has_poison(now) {
                return Some(Given::Poisoned);
            }
            let (next, given) = if now & POISON == 0 && count(now) + frames == ALL {
                if is_isolated(now) {
                    (0, Given::Drained)
                } else if at_edge(Edge::Last) {
                    // All of it is free, so the host has none of it.
                    let next = (now + frames) & !LENT;
                    (next, if count(now) == 0 { Given::First } else { Given::Some })
                } else {
                    (0, Given::Last)
                }
            } else if count(now) == 0 && now & ISOLATED == 0 {
                at_edge(Edge::First);
                (now + frames, Given::First)
            } else {
                (now + frames, Given::Some)
            };
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(given),
                Err(seen) => now = seen,
            }
        }
    }

    /// Takes a divided pageblock as a whole, if every frame of it is free. Returns false if not, or
    /// if it was isolated: then its token owns it now.
    pub(crate) fn own_free(&self) -> bool {
        self.own_from(ALL) == Some(false)
    }

    /// Takes back a pageblock that was allocated as a whole. Returns whether it was isolated: then
    /// its token owns it now.
    pub(crate) fn own_used(&self) -> Option<bool> {
        self.own_from(0)
    }

    /// Goes from `LIVE|n` straight to owned. Returns whether the pageblock was isolated.
    ///
    /// AcqRel for the same reasons as [`give`](Self::give).
    fn own_from(&self, n: u16) -> Option<bool> {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (LIVE | POISON) == LIVE && count(now) == n {
            match self.0.compare_exchange_weak(now, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(now & ISOLATED != 0),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Goes from `LIVE|ISOLATED|n`, poisoned or not, straight to owned: the token's holder knows
    /// that the other frames never become free. AcqRel as in [`give`](Self::give).
    pub(crate) fn own_drained(&self, n: usize) -> bool {
        let n = narrow(n);
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (LIVE | ISOLATED) == LIVE | ISOLATED && count(now) == n {
            match self.0.compare_exchange_weak(now, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Marks a live pageblock as having poisoned frames, so that later frees check which. Returns
    /// false if it is not live.
    ///
    /// AcqRel: Release shows which frames are poisoned, Acquire shows the frees that did not check.
    pub(crate) fn poison(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & LIVE != 0 {
            let marked = now | POISON;
            match self.0.compare_exchange_weak(now, marked, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Clears the mark of poisoned frames.
    pub(crate) fn heal(&self) {
        self.0.fetch_and(!POISON, Ordering::AcqRel);
    }

    /// Takes a credit for one frame that is taken out of use for good, also under isolation.
    /// Acquire as in [`credit`](Self::credit).
    pub(crate) fn credit_for_good(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & LIVE != 0 && count(now) > 0 {
            match self.0.compare_exchange_weak(now, now - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Puts a live pageblock under isolation: no credit is granted after this.
    pub(crate) fn isolate(&self) -> Capture {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            mutant!("isolation of any block state" => if now & (LIVE | KEPT | OUT) == 0 {
                self.0.fetch_or(ISOLATED, Ordering::AcqRel);
                return Capture::Flagged;
            });
            let next = match now {
                _ if now & (LIVE | OUT) == OUT => return Capture::Reporting,
                KEPT => KEPT | ISOLATED,
                _ if now & (LIVE | KEPT) == 0 => return Capture::InFlight,
                _ if now & ISOLATED != 0 => return Capture::HeldByAnother,
                // Divided but wholly free: taken straight from the block state.
                _ if now & POISON == 0 && count(now) == ALL => 0,
                _ => now | ISOLATED,
            };
            // AcqRel: Acquire as in `give`, Release so that a drained state is seen with the flag.
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if next == 0 => return Capture::Owned,
                Ok(KEPT) => return Capture::Kept,
                Ok(_) => return Capture::Flagged,
                Err(seen) => now = seen,
            }
        }
    }

    /// Clears the isolation flag and returns the block state before. Acquire: a caller that finds 0
    /// owns the pageblock and must come after the free that drained it.
    pub(crate) fn release(&self) -> BlockState {
        BlockState(self.0.fetch_and(!ISOLATED, Ordering::AcqRel))
    }

    /// Marks a free pageblock as seen. Returns whether it was marked already, and so has been free
    /// since. Relaxed: the mark is a guess at what is worth reporting, and nothing depends on it.
    pub(crate) fn see(&self) -> bool {
        match self.0.compare_exchange(0, SEEN, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(now) => now == SEEN,
        }
    }

    /// Returns whether it is free and [`see`](Self::see) has marked it.
    pub(crate) fn was_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SEEN
    }

    /// Clears the mark of [`see`](Self::see) from a free pageblock. Relaxed: as for `see`.
    pub(crate) fn forget_seen(&self) {
        // If it is anything else, the reporter has not seen it free.
        let _ = self.0.compare_exchange(SEEN, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Marks a live pageblock of which the host will be given some frames. Returns false if it is
    /// not live. Relaxed: a fence follows (see `frames/pins.rs`).
    pub(crate) fn lend(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & LIVE != 0 {
            let lent = now | LENT;
            match self.0.compare_exchange_weak(now, lent, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Marks the pageblock as out: the host will work on it. Owner only. Release: a reset comes
    /// after the claim.
    pub(crate) fn send_out(&self) {
        self.0.store(OUT, Ordering::Release);
    }

    /// Marks the pageblock as no longer out. Returns false if it was not out. AcqRel: as in
    /// `send_out`, and a later isolation comes after the host's work.
    pub(crate) fn take_back(&self) -> bool {
        self.0.compare_exchange(OUT, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Converts a number of frames of a pageblock to a count.
#[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
fn narrow(frames: usize) -> u16 {
    frames as u16
}

/// How a token's attempt to capture a pageblock ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    /// It was wholly free, and the token owns it now.
    Owned,
    /// It is in use, and no more of it can be allocated.
    Flagged,
    /// It holds the descriptors of its section, and leaves with the section.
    Kept,
    /// Another token holds it.
    HeldByAnother,
    /// The reporter holds it, and the host is working on it.
    Reporting,
    /// An operation is about to take or to give it: look again.
    InFlight,
}
