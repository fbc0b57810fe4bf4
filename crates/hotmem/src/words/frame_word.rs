//! Implements a word of a frame bitmap: which of 32 frames are free.
//!
//! The bits are the only record of what is free: nothing counts them. So an allocation and a free
//! are one compare-exchange each, which tests the flags as well (see `words/word_bits.rs`), and a
//! bit that is set already refuses a double free. Because of the name and the zone, a CPU can
//! allocate by a pointer to the word alone (see `words/cursor.rs`).
//!
//! A word that is not held proves that its pageblock is live and divided.

use super::Zone;
use super::word_bits::{
    ALL, CLOSED, FLAGS, Given, HELD, ISOLATED, LENT, MOVABLE, NAME, NAME_SHIFT, NAMED_FRAMES,
    POISON, lacks, lowest, of_zone, offers,
};
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, GROUP_FRAMES};
use crate::sync::{AtomicU64, Ordering, sequential};

/// A word of a frame bitmap.
#[repr(transparent)]
pub(crate) struct FrameWord(AtomicU64);

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
        if !offers(now, zone) {
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

    /// Returns what a free of `bits` would find now; `None` if one of them is set already.
    #[inline(always)]
    pub(super) fn would_give(&self, bits: u64) -> Option<Given> {
        Given::new(self.0.load(Ordering::Relaxed), bits)
    }

    /// Frees the frames that `given` says, if the word still is what that says. Returns false, and
    /// changes nothing, otherwise. `SeqCst`: see [`give`](Self::give).
    #[inline(always)]
    pub(super) fn give_as(&self, given: Given) -> bool {
        let (before, after) = given.change();
        self.0.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Frees `frame`, if it is a frame of this word, which has no flags and other free frames, and if
    /// nobody else changes the word meanwhile. Returns `None`, and changes nothing, otherwise. Such a
    /// free needs no more than this, unless all frames of the word are free now.
    #[inline(always)]
    pub(super) fn give_one(&self, frame: Pfn) -> Option<Given> {
        let given = self.would_give(1 << (frame.number() % BITMAP_WORD_BITS as u64))?;
        (given.is_named_beside_free(frame) && self.give_as(given)).then_some(given)
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
                Ok(before) => return Given::new(before, bits),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Returns whether all frames of these words are free and none has flags. `SeqCst`: the caller
    /// has freed frames, or has changed a hint or a flag before.
    pub(super) fn are_all_free(words: &[FrameWord]) -> bool {
        sequential();
        // Backwards: memory that was allocated in one go is most often freed in the same order.
        words.iter().rev().all(|word| word.0.load(Ordering::SeqCst) & (ALL | FLAGS) == ALL)
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

    /// Returns whether some frames of this word may be taken. For callers as of
    /// [`are_all_free`](Self::are_all_free).
    pub(super) fn offers_some(&self) -> bool {
        FrameWord::offer_some(core::slice::from_ref(self))
    }

    /// Returns whether [`take_one_of`](Self::take_one_of) would find a frame. A guess.
    #[inline]
    pub(super) fn offers_one_of(&self, zone: Zone) -> bool {
        offers(self.0.load(Ordering::Relaxed), zone)
    }

    /// Returns the first frame of the word.
    pub(super) fn start(&self) -> Option<Pfn> {
        // Relaxed: it never changes.
        Pfn::new(self.first_frame(self.0.load(Ordering::Relaxed)))
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
