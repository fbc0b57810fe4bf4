//! Implements a word of a frame bitmap: which of 32 frames are free.
//!
//! A word has a bit for each of its frames, which is set while the frame is free, and beside them:
//!
//! | bits | meaning |
//! |---|---|
//! | `HELD` | no frame may be taken: the pageblock is not live, or was allocated as a whole, or the holder is about to take it as a whole |
//! | `ISOLATED` | no frame may be taken: an isolation token has the pageblock |
//! | `POISON` | a free must check whether it frees a poisoned frame |
//! | `LENT` | the host was given some of the pageblock's frames |
//! | `MOVABLE` | the zone of the frames; written when the word is opened |
//! | the name | which frames these are; it never changes |
//!
//! The bits are the only record of what is free: nothing counts them. So an allocation and a free
//! are one compare-exchange each, which tests all the rest as well, and a bit that is set already
//! refuses a double free. Because of the name and the zone, a CPU can allocate by a pointer to the
//! word alone (see `words/cursor.rs`).
//!
//! A word that is not held proves that its pageblock is live and divided.

use super::Zone;
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, GROUP_FRAMES, PFN_LIMIT, mask};
use crate::sync::{AtomicU64, Ordering, mutant, sequential};

/// A word of a frame bitmap.
#[repr(transparent)]
pub(crate) struct FrameWord(AtomicU64);

/// The bits of a word whose frames are all free.
pub(super) const ALL: u64 = mask(BITMAP_WORD_BITS);
const HELD: u64 = 1 << BITMAP_WORD_BITS;
const ISOLATED: u64 = HELD << 1;
const POISON: u64 = HELD << 2;
const LENT: u64 = HELD << 3;
const MOVABLE: u64 = HELD << 4;
/// The name is in the bits from here on.
const NAME_SHIFT: usize = BITMAP_WORD_BITS + 6;
const NAME: u64 = !mask(NAME_SHIFT);

/// The flags that keep allocations away, and that with which a free is more than setting bits.
const CLOSED: u64 = HELD | ISOLATED;
const FLAGS: u64 = CLOSED | POISON;

/// The frames of all words that have the same name: those whose bitmaps lie in one frame of memory.
/// In a model, bitmaps do not fill frames of memory, and each word has a name of its own.
const NAMED_FRAMES: u64 = if cfg!(loom) { BITMAP_WORD_BITS } else { GROUP_FRAMES } as u64;
const _: () = assert!((PFN_LIMIT - 1) / NAMED_FRAMES <= NAME >> NAME_SHIFT);

/// What a word was before some of its frames were freed, and the bits of these frames.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    before: u64,
    bits: u64,
}

impl Given {
    /// Returns that of the last bits of a word without flags.
    pub(crate) fn last(bits: u64) -> Given {
        Given { before: ALL & !bits, bits }
    }

    /// Returns whether the word has no flags, and some of its frames were free before. Then the free
    /// changes nothing but the bits, unless all frames of the word are free now.
    #[inline]
    pub(crate) fn is_beside_free(self) -> bool {
        self.before & ALL != 0 && self.before & FLAGS == 0
    }

    /// Returns the bits that were set.
    pub(crate) fn bits(self) -> u64 {
        self.bits
    }

    /// Returns whether no frame of the word was free before.
    pub(crate) fn is_first(self) -> bool {
        self.before & ALL == 0
    }

    /// Returns whether all frames of the word are free now, and it has no flags.
    #[inline]
    pub(crate) fn is_full(self) -> bool {
        (self.before | self.bits) & (ALL | FLAGS) == ALL
    }

    /// Returns whether the word is held.
    pub(crate) fn is_held(self) -> bool {
        self.before & HELD != 0
    }

    /// Returns whether an isolation token has the pageblock.
    pub(crate) fn is_isolated(self) -> bool {
        self.before & ISOLATED != 0
    }

    /// Returns whether frames of the pageblock are poisoned.
    pub(crate) fn has_poison(self) -> bool {
        mutant!("a free does not look for poison" => return false);
        self.before & POISON != 0
    }

    /// Returns whether the host was given some of the pageblock's frames.
    #[inline]
    pub(crate) fn is_lent(self) -> bool {
        self.before & LENT != 0
    }
}

impl FrameWord {
    #[cfg(loom)]
    pub(super) fn new() -> FrameWord {
        FrameWord(AtomicU64::new(0))
    }

    /// Names the word, whose first frame has number `frame`, and writes it: held, and no frame is
    /// free. For the code that installs the bitmap only.
    pub(super) fn name(&self, frame: u64) {
        let name = (frame / NAMED_FRAMES) << NAME_SHIFT;
        self.0.store(name | HELD, Ordering::Relaxed);
    }

    /// Writes the word: held, and these frames are free. For the owner of the pageblock only.
    pub(super) fn write(&self, free: u64) {
        // Relaxed: only the owner of a pageblock changes a held word.
        let name = self.0.load(Ordering::Relaxed) & NAME;
        self.0.store(name | free | HELD, Ordering::Relaxed);
    }

    /// Lets go of the word, whose frames are of `zone`. For the holder only. `SeqCst`: Release pairs
    /// with [`take`](Self::take); the holder reads the bits afterwards.
    pub(super) fn open(&self, zone: Zone) {
        // Relaxed: nobody else changes these two.
        let now = self.0.load(Ordering::Relaxed);
        let flip = HELD | (now ^ of_zone(zone)) & MOVABLE;
        self.0.fetch_xor(flip, Ordering::SeqCst);
    }

    /// Holds the word, if all frames are free and it has no flags. AcqRel: Acquire pairs with the
    /// Release of the frees.
    pub(super) fn hold(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & (ALL | FLAGS) == ALL
            && self.0.compare_exchange(now, now | HELD, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Keeps everybody from taking frames. AcqRel: Acquire pairs with the Release of the frees, and
    /// Release so that a drained pageblock is seen with the flag.
    pub(super) fn isolate(&self) {
        self.0.fetch_or(ISOLATED, Ordering::AcqRel);
    }

    /// Ends [`isolate`](Self::isolate). Release pairs with [`take`](Self::take).
    pub(super) fn release(&self) {
        self.0.fetch_and(!ISOLATED, Ordering::AcqRel);
    }

    /// Makes frees check for poison, and returns the bits that are set. AcqRel: a later free sees
    /// which frames are poisoned, and an earlier one is seen.
    pub(super) fn poison(&self) -> u64 {
        self.0.fetch_or(POISON, Ordering::AcqRel) & ALL
    }

    /// Ends [`poison`](Self::poison).
    pub(super) fn heal(&self) {
        self.0.fetch_and(!POISON, Ordering::SeqCst);
    }

    /// Flags the word for the free that sets the last bit of the pageblock. AcqRel: an earlier free
    /// is seen, and a later one sees it.
    pub(super) fn lend(&self) {
        self.0.fetch_or(LENT, Ordering::AcqRel);
    }

    /// Takes `bits`, if all are free and may be taken.
    ///
    /// AcqRel: Acquire pairs with [`give`](Self::give), so that the new owner of the frames comes
    /// after the old one. Release pairs with the fence in `Watch::was_quiet`: a search that finds
    /// these frames taken also sees the moves that the taker has seen.
    #[inline]
    pub(super) fn take(&self, bits: u64) -> bool {
        self.take_unless(CLOSED, bits)
    }

    /// Takes `bits` out of use, if all are free, whatever the flags are. AcqRel: see
    /// [`take`](Self::take).
    pub(super) fn take_out(&self, bits: u64) -> bool {
        self.take_unless(0, bits)
    }

    fn take_unless(&self, flags: u64, bits: u64) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (bits | flags) == bits {
            match self.0.compare_exchange_weak(
                now,
                now & !bits,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Takes the first free frame and returns its number, if the word is of `zone` and has no flags,
    /// and nobody else changes it meanwhile. AcqRel: see [`take`](Self::take).
    #[inline]
    pub(super) fn take_one_of(&self, zone: Zone) -> Option<u64> {
        let now = self.0.load(Ordering::Relaxed);
        let is_open = lacks(now, FLAGS) && now & MOVABLE == of_zone(zone);
        if !is_open || now & ALL == 0 {
            return None;
        }
        self.0.compare_exchange(now, now & (now - 1), Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(self.first_frame(now) + u64::from(now.trailing_zeros()))
    }

    /// Takes the first free frame of a word that may have poison, but no other flags. Returns its
    /// number in the word. AcqRel: see [`take`](Self::take).
    #[inline(always)]
    pub(super) fn take_first(&self, beside_poison: bool) -> Option<usize> {
        let flags = if beside_poison { CLOSED } else { FLAGS };
        let mut now = self.0.load(Ordering::Relaxed);
        while lacks(now, flags) && now & ALL != 0 {
            match self.0.compare_exchange_weak(
                now,
                now & (now - 1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(now.trailing_zeros() as usize),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Takes up to `most` of the free frames, the lowest first, if the word has no flags. Returns
    /// their bits. AcqRel: see [`take`](Self::take).
    pub(super) fn take_some(&self, most: usize) -> u64 {
        let mut now = self.0.load(Ordering::Relaxed);
        while lacks(now, FLAGS) && now & ALL != 0 && most > 0 {
            let taken = lowest(now & ALL, most);
            match self.0.compare_exchange_weak(
                now,
                now & !taken,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return taken,
                Err(seen) => now = seen,
            }
        }
        0
    }

    /// Sets `bits` of a word without flags of which some frames are free, but not these, if nobody
    /// else changes it meanwhile. Returns `None`, and changes nothing, otherwise. Such a free needs
    /// no more than this, unless all frames of the word are free now. `SeqCst`: see
    /// [`give`](Self::give).
    #[inline]
    pub(super) fn give_beside_free(&self, bits: u64) -> Option<Given> {
        self.set_beside_free(self.0.load(Ordering::Relaxed), bits)
    }

    /// Does the same with the bit of `frame`, if it is a frame of this word.
    #[inline]
    pub(super) fn give_one(&self, frame: Pfn) -> Option<Given> {
        let now = self.0.load(Ordering::Relaxed);
        if now >> NAME_SHIFT != frame.number() / NAMED_FRAMES {
            return None;
        }
        self.set_beside_free(now, 1 << (frame.number() % BITMAP_WORD_BITS as u64))
    }

    #[inline(always)]
    fn set_beside_free(&self, before: u64, bits: u64) -> Option<Given> {
        let given = Given { before, bits };
        if before & bits != 0 || !given.is_beside_free() {
            return None;
        }
        let after = before | bits;
        self.0.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        Some(given)
    }

    /// Sets `bits` of a word that is neither held nor flagged for poison, if none of them is set
    /// already. Returns `None`, and changes nothing, if the word is another one. Calls `first` before
    /// it sets the first bits: a search may have looked there already.
    ///
    /// `SeqCst`: Release pairs with [`take`](Self::take). Beyond that, a free that changes what can
    /// be found next looks at other words and hints, whose writers look at this word.
    pub(super) fn give(&self, bits: u64, first: impl FnMut()) -> Option<Given> {
        self.give_unless(HELD | POISON, bits, first)
    }

    /// Does the same in a word with any flags.
    pub(super) fn give_part(&self, bits: u64, first: impl FnMut()) -> Option<Given> {
        self.give_unless(0, bits, first)
    }

    #[inline(always)]
    fn give_unless(&self, flags: u64, bits: u64, mut first: impl FnMut()) -> Option<Given> {
        // Acquire: a caller that gets `None` because of a flag sees what was done before it was set.
        let mut now = self.0.load(Ordering::Acquire);
        while now & (bits | flags) == 0 {
            if now & ALL == 0 {
                first();
            }
            match self.0.compare_exchange_weak(now, now | bits, Ordering::SeqCst, Ordering::Acquire)
            {
                Ok(before) => return Some(Given { before, bits }),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Returns whether all frames of these words are free and none has flags. `SeqCst`: the caller
    /// has freed frames, or has changed a hint or a flag before.
    pub(super) fn are_all_free(words: &[FrameWord]) -> bool {
        sequential();
        words.iter().all(|word| word.0.load(Ordering::SeqCst) & (ALL | FLAGS) == ALL)
    }

    /// Returns whether some frames of these words may be taken. `SeqCst`: as for
    /// [`are_all_free`](Self::are_all_free).
    pub(super) fn offer_some(words: &[FrameWord]) -> bool {
        sequential();
        let is_takeable = |now| now & CLOSED == 0 && now & ALL != 0;
        let mut words = words.iter().map(|word| word.0.load(Ordering::SeqCst));
        let any = words.clone().fold(0, core::ops::BitOr::bitor);
        // Most often, no word has a flag.
        is_takeable(any) || (any & ALL != 0 && words.any(is_takeable))
    }

    /// Returns the bits. Acquire pairs with the Release of the frees.
    pub(super) fn bits(&self) -> u64 {
        self.0.load(Ordering::Acquire) & ALL
    }

    /// Returns the bits. A snapshot.
    pub(super) fn bits_now(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & ALL
    }

    /// Returns the frames that may be taken. A snapshot.
    pub(super) fn takeable(&self) -> u64 {
        let now = self.0.load(Ordering::Relaxed);
        if now & CLOSED == 0 { now & ALL } else { 0 }
    }

    /// Returns whether the word is held. Acquire pairs with the Release of the holder.
    pub(super) fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) & HELD != 0
    }

    /// Returns whether the word has the flag of isolation.
    pub(super) fn is_isolated(&self) -> bool {
        self.0.load(Ordering::Acquire) & ISOLATED != 0
    }

    /// Returns whether the word is that of the frames from number `frame` on, and of `zone` unless
    /// its frames cannot be taken.
    pub(super) fn describes(&self, frame: u64, zone: Zone) -> bool {
        let now = self.0.load(Ordering::Acquire);
        self.first_frame(now) == frame && (now & CLOSED != 0 || now & MOVABLE == of_zone(zone))
    }

    /// Returns the number of the first frame of the word, which has this value.
    #[inline]
    fn first_frame(&self, now: u64) -> u64 {
        let named = (now >> NAME_SHIFT) * NAMED_FRAMES;
        if cfg!(loom) {
            return named;
        }
        // Words with the same name fill a frame of memory, in the order of their frames.
        let at = core::ptr::from_ref(self).addr() % NAMED_BYTES;
        named + (at / size_of::<FrameWord>() * BITMAP_WORD_BITS) as u64
    }
}

/// The bytes of all words that have the same name.
pub(super) const NAMED_BYTES: usize =
    GROUP_FRAMES / BITMAP_WORD_BITS * size_of::<core::sync::atomic::AtomicU64>();
const _: () = assert!(NAMED_BYTES.is_power_of_two());

/// Returns the flag of a zone.
#[inline]
const fn of_zone(zone: Zone) -> u64 {
    match zone {
        Zone::Kernel => 0,
        Zone::Movable => MOVABLE,
    }
}

/// Returns whether a word lacks all these flags.
#[inline]
fn lacks(now: u64, flags: u64) -> bool {
    mutant!("an allocation does not look at the flags" => return true);
    now & flags == 0
}

/// Returns the lowest `n` set bits, or all of them if there are no more.
fn lowest(word: u64, n: usize) -> u64 {
    let rest = (0..n).fold(word, |rest, _| rest & rest.wrapping_sub(1));
    word & !rest
}
