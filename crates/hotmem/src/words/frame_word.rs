//! Implements a word of a frame bitmap, which records which of 32 frames are free.
//!
//! The bits are the only record of which frames are free; no count of free frames exists. So an
//! allocation is one compare-exchange, and so is a free; each tests the flags as well (see
//! `words/word_bits.rs`). If a free finds one of its bits set already, it is a double free, and it
//! is refused. A word also records its first frame and the zone of its frames, so that a CPU that
//! has a pointer to a word can allocate without a look-up (see `words/cursor.rs`).
//!
//! A word that is not held proves that its pageblock is live and divided.

mod run;

use super::Zone;
use super::last_change::LastChange;
use super::word_bits::{
    ALL_FREE, CLOSED, FLAGS, FreedBits, GROUP, GROUP_SHIFT, HELD, ISOLATED, LENT, MARK, MOVABLE,
    POISON, WORD_GROUP_FRAMES, has_free_without, lowest_bits, may_have_been_passed, offers,
    zone_flag,
};
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, GROUP_FRAMES};
use crate::sync::{AtomicU64, Ordering, const_unless_loom, mutant, sequential};

/// A word of a frame bitmap.
#[repr(transparent)]
pub(crate) struct FrameWord(AtomicU64);

impl FrameWord {
    const_unless_loom! {
        /// Returns a word that belongs to no bitmap yet.
        pub(super) fn new() -> FrameWord {
            FrameWord(AtomicU64::new(0))
        }
    }

    /// Initialises the word: records the number of its first frame, `frame`, and holds the word,
    /// with no free frame. Only for the code that installs the bitmap.
    pub(super) fn init(&self, frame: u64) {
        let group = (frame / WORD_GROUP_FRAMES) << GROUP_SHIFT;
        self.0.store(group | HELD, Ordering::Relaxed);
    }

    /// Makes the frames of `free` the free frames of the word, and holds the word. If `is_zero`, marks
    /// the word. Only for the owner of the pageblock.
    pub(super) fn write(&self, free: u64, is_zero: bool) {
        // Relaxed: only the owner of a pageblock changes a held word.
        let group = self.0.load(Ordering::Relaxed) & GROUP;
        let mark = if is_zero { MARK } else { 0 };
        self.0.store(group | free | HELD | mark, Ordering::Relaxed);
    }

    /// Opens the word: ends the hold, and records that its frames are of `zone`. Only for the
    /// holder. `SeqCst`: Release pairs with [`take`](Self::take), and the holder's later loads of
    /// the bits come after this write.
    pub(super) fn open(&self, zone: Zone) {
        // Relaxed: only the holder changes `HELD` and `MOVABLE`.
        let now = self.0.load(Ordering::Relaxed);
        let flip = HELD | (now ^ zone_flag(zone)) & MOVABLE;
        self.0.fetch_xor(flip, Ordering::SeqCst);
    }

    /// Holds the word, if all frames are free and it has no flags. AcqRel: Acquire pairs with the
    /// Release of the frees.
    pub(super) fn hold(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & (ALL_FREE | FLAGS) == ALL_FREE
            && self.0.compare_exchange(now, now | HELD, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Prevents allocations from the word. AcqRel: Acquire pairs with the Release of the frees;
    /// Release, so that a CPU that sees the flag also sees that the pageblock is drained.
    pub(super) fn isolate(&self) {
        self.0.fetch_or(ISOLATED, Ordering::AcqRel);
    }

    /// Ends [`isolate`](Self::isolate). Release pairs with [`take`](Self::take).
    pub(super) fn release(&self) {
        self.0.fetch_and(!ISOLATED, Ordering::AcqRel);
    }

    /// Sets the flag that makes frees check for poison, and returns the bits of the free frames.
    /// AcqRel: a later free sees which frames are poisoned, and this call sees earlier frees.
    pub(super) fn poison(&self) -> u64 {
        self.0.fetch_or(POISON, Ordering::AcqRel) & ALL_FREE
    }

    /// Clears the flag of [`poison`](Self::poison).
    pub(super) fn heal(&self) {
        self.0.fetch_and(!POISON, Ordering::SeqCst);
    }

    /// Sets the flag of lent frames, so that the free of the pageblock's last frame sees that the
    /// host was given some frames. AcqRel: this call sees earlier frees, and later frees see the
    /// flag. The same holds if the flag is set already: Acquire pairs with the frees, and a later
    /// free changes the word that has the flag.
    pub(super) fn lend(&self) {
        if self.0.load(Ordering::Acquire) & LENT == 0 {
            self.0.fetch_or(LENT, Ordering::AcqRel);
        }
    }

    /// Takes the frames of `bits`, if all of them are free and may be taken.
    ///
    /// AcqRel: Acquire pairs with [`free`](Self::free), so that the accesses of the previous owner
    /// of the frames happen before those of the new owner. Release pairs with the fence in
    /// `Watch::saw_no_hiding_step`: a search that finds these frames taken also sees the hiding
    /// steps that the taker has seen.
    #[inline]
    pub(super) fn take(&self, bits: u64) -> bool {
        self.take_unless(CLOSED, bits)
    }

    /// Takes the frames of `bits`, if all of them are free, whatever flags the word has. The caller
    /// must not allocate them to anybody. AcqRel: see [`take`](Self::take).
    pub(super) fn take_flagged(&self, bits: u64) -> bool {
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
                Err(actual) => now = actual,
            }
        }
        false
    }

    /// Takes the first free frame and returns its number. Returns `None` if the word is of another
    /// zone than `zone`, has flags or no free frame, or if another CPU changes the word at the same
    /// time. Also returns `None` if the guess of `last_change`, which is the caller's, is wrong;
    /// then the next call has no wrong guess. AcqRel: see [`take`](Self::take).
    #[inline]
    pub(super) fn take_frame_of(&self, zone: Zone, last_change: &LastChange) -> Option<u64> {
        let now = self.probable_value(last_change);
        if !offers(now, zone) {
            last_change.clear();
            return None;
        }
        self.change(now, now & (now - 1), Ordering::AcqRel, last_change)
            .then(|| self.first_frame(now) + u64::from(now.trailing_zeros()))
    }

    /// Returns the value that the word has, unless the guess of `last_change` is wrong.
    #[inline(always)]
    fn probable_value(&self, last_change: &LastChange) -> u64 {
        last_change.guess_value(self.address()).unwrap_or_else(|| self.0.load(Ordering::Relaxed))
    }

    /// Replaces the value `before` by `after`, and returns true. If the word has another value,
    /// returns false, and changes nothing. `last_change`, which is the caller's, records the value
    /// that the word has now, and must already name this word.
    #[inline(always)]
    fn change(&self, before: u64, after: u64, success: Ordering, last_change: &LastChange) -> bool {
        match self.0.compare_exchange(before, after, success, Ordering::Relaxed) {
            Ok(_) => {
                last_change.set_value(after);
                true
            }
            Err(now) => {
                last_change.set_value(now);
                false
            }
        }
    }

    /// Takes the first free frame, and returns its number in the word. Returns `None` if the word
    /// has no free frame or has flags; if `beside_poison` is true, the flag of poison is allowed.
    /// AcqRel: see [`take`](Self::take).
    pub(super) fn take_first(&self, beside_poison: bool) -> Option<usize> {
        let flags = if beside_poison { CLOSED } else { FLAGS };
        let mut now = self.0.load(Ordering::Relaxed);
        while has_free_without(flags, now) {
            match self.0.compare_exchange_weak(
                now,
                now & (now - 1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(now.trailing_zeros() as usize),
                Err(actual) => now = actual,
            }
        }
        None
    }

    /// Takes up to `most` of the free frames, the lowest first, and returns their bits. Takes none
    /// if the word has flags. AcqRel: see [`take`](Self::take).
    pub(super) fn take_up_to(&self, most: usize) -> u64 {
        let mut now = self.0.load(Ordering::Relaxed);
        while has_free_without(FLAGS, now) && most > 0 {
            let taken = lowest_bits(now & ALL_FREE, most);
            match self.0.compare_exchange_weak(
                now,
                now & !taken,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return taken,
                Err(actual) => now = actual,
            }
        }
        0
    }

    /// Returns the free of `bits` as it would be now, or `None` if one of these bits is set already.
    /// Changes nothing. `last_change`, which is the caller's, then names this word, without its value.
    #[inline(always)]
    pub(super) fn plan_free(&self, bits: u64, last_change: &LastChange) -> Option<FreedBits> {
        last_change.set_word(self.address());
        FreedBits::new(self.0.load(Ordering::Relaxed), bits)
    }

    /// Returns the same as [`plan_free`](Self::plan_free), unless the guess of `last_change` is wrong.
    #[inline(always)]
    pub(super) fn plan_likely_free(
        &self,
        bits: u64,
        last_change: &LastChange,
    ) -> Option<FreedBits> {
        FreedBits::new(self.probable_value(last_change), bits)
    }

    /// Frees the frames of `freed`, a plan with the same `last_change`, if the word has the value that
    /// the plan is based on. Otherwise returns false, and changes nothing. `SeqCst`: see
    /// [`free`](Self::free).
    #[inline(always)]
    pub(super) fn free_as(&self, freed: FreedBits, last_change: &LastChange) -> bool {
        let (before, after) = freed.change();
        self.change(before, after, Ordering::SeqCst, last_change)
    }

    /// Frees `frame`, if it is a frame of this word, the word has no flags and has other free
    /// frames, and no other CPU changes the word at the same time. Otherwise returns `None`, and
    /// changes nothing; also if the guess of `last_change`, which is the caller's, is wrong. A free
    /// that succeeds has nothing more to do, unless all frames of the word are free after it.
    #[inline(always)]
    pub(super) fn free_one(&self, frame: Pfn, last_change: &LastChange) -> Option<FreedBits> {
        let bit = u64::from(1_u32 << (frame.number() % BITMAP_WORD_BITS as u64));
        let freed = self.plan_likely_free(bit, last_change)?;
        if !freed.was_partial_in_group_of(frame) {
            return None;
        }
        self.free_as(freed, last_change).then_some(freed)
    }

    /// Frees the frames of `bits`. Returns `None`, and changes nothing, if one of these frames is
    /// free already, or if the word is held or flagged for poison. If no frame of the word is free
    /// yet, or the word has a mark, calls `before_first` before it sets the
    /// bits, because a search may have read this word already and must not be believed.
    ///
    /// `SeqCst`: Release pairs with [`take`](Self::take). A free that changes what searches can
    /// find then reads other words and hints, and the code that writes those then reads this word,
    /// so that at least one of the two sees the other.
    pub(super) fn free(&self, bits: u64, before_first: impl FnMut()) -> Option<FreedBits> {
        self.free_unless(HELD | POISON, bits, before_first)
    }

    /// Frees as [`free`](Self::free) does, whatever flags the word has.
    pub(super) fn free_flagged(&self, bits: u64, before_first: impl FnMut()) -> Option<FreedBits> {
        self.free_unless(0, bits, before_first)
    }

    fn free_unless(
        &self,
        flags: u64,
        bits: u64,
        mut before_first: impl FnMut(),
    ) -> Option<FreedBits> {
        // Acquire: a caller that gets `None` because of a flag sees what happened before the flag
        // was set.
        let mut now = self.0.load(Ordering::Acquire);
        while now & (bits | flags) == 0 {
            if may_have_been_passed(now) {
                before_first();
            }
            mutant!("a free keeps the mark of its word" => {
                let kept = self.0.compare_exchange(now, now | bits, Ordering::SeqCst, Ordering::Acquire);
                return kept.ok().and_then(|before| FreedBits::new(before, bits));
            });
            let after = (now | bits) & !MARK;
            match self.0.compare_exchange_weak(now, after, Ordering::SeqCst, Ordering::Acquire) {
                Ok(before) => return FreedBits::new(before, bits),
                Err(actual) => now = actual,
            }
        }
        None
    }

    /// Returns whether all frames of these words are free and no word has flags. `SeqCst` orders
    /// these loads after the caller's write, which freed frames or changed a hint or a flag.
    pub(super) fn are_all_free(words: &[FrameWord]) -> bool {
        sequential();
        // From the last word: frames of one allocation are most often freed in ascending order, so
        // that the last word is the last to become free.
        words
            .iter()
            .rev()
            .all(|word| word.0.load(Ordering::SeqCst) & (ALL_FREE | FLAGS) == ALL_FREE)
    }

    /// Returns whether any frame of these words may be taken. `SeqCst`: as for
    /// [`are_all_free`](Self::are_all_free).
    pub(super) fn any_takeable(words: &[FrameWord]) -> bool {
        sequential();
        let is_takeable = |now| now & CLOSED == 0 && now & ALL_FREE != 0;
        let mut words = words.iter().map(|word| word.0.load(Ordering::SeqCst));
        let any = words.clone().fold(0, core::ops::BitOr::bitor);
        // The common case is that no word has a flag, and then the union of all words decides.
        is_takeable(any) || (any & ALL_FREE != 0 && words.any(is_takeable))
    }

    /// Returns whether any frame of this word may be taken. `SeqCst`: as for
    /// [`are_all_free`](Self::are_all_free).
    pub(super) fn has_takeable(&self) -> bool {
        FrameWord::any_takeable(core::slice::from_ref(self))
    }

    /// Returns whether [`take_frame_of`](Self::take_frame_of) would probably find a frame.
    #[inline]
    pub(super) fn offers_frame_of(&self, zone: Zone) -> bool {
        offers(self.0.load(Ordering::Relaxed), zone)
    }

    /// Returns the first frame of the word.
    pub(super) fn start(&self) -> Option<Pfn> {
        // Relaxed: a word keeps its first frame for ever.
        Pfn::new(self.first_frame(self.0.load(Ordering::Relaxed)))
    }

    /// Returns the bits of the free frames. Acquire pairs with the Release of the frees.
    pub(super) fn bits(&self) -> u64 {
        self.0.load(Ordering::Acquire) & ALL_FREE
    }

    /// Returns the bits of the free frames: a snapshot, which orders nothing.
    pub(super) fn bits_now(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & ALL_FREE
    }

    /// Returns the bits of the frames that may be taken: a snapshot, which orders nothing.
    pub(super) fn count_takeable(&self) -> u64 {
        let now = self.0.load(Ordering::Relaxed);
        if now & CLOSED == 0 { now & ALL_FREE } else { 0 }
    }

    /// Returns whether the word is held. Acquire pairs with the Release of the holder.
    pub(super) fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) & HELD != 0
    }

    /// Returns whether the word has the flag of isolation.
    pub(super) fn is_isolated(&self) -> bool {
        self.0.load(Ordering::Acquire) & ISOLATED != 0
    }

    /// Returns whether the first frame of the word has number `frame`, and the word is of `zone`.
    /// The zone is not compared if the frames of the word cannot be taken.
    pub(super) fn describes(&self, frame: u64, zone: Zone) -> bool {
        let now = self.0.load(Ordering::Acquire);
        self.first_frame(now) == frame && (now & CLOSED != 0 || now & MOVABLE == zone_flag(zone))
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Returns the number of the first frame of this word, whose value is `now`.
    pub(super) fn first_frame(&self, now: u64) -> u64 {
        let first = (now >> GROUP_SHIFT) * WORD_GROUP_FRAMES;
        if cfg!(loom) {
            return first;
        }
        // Words with the same group number fill a frame of memory, in the order of their frames.
        let byte_offset = self.address() % WORD_GROUP_BYTES;
        first + (byte_offset / size_of::<FrameWord>() * BITMAP_WORD_BITS) as u64
    }
}

/// The number of bytes of all words that have the same group number.
pub(super) const WORD_GROUP_BYTES: usize =
    GROUP_FRAMES / BITMAP_WORD_BITS * size_of::<core::sync::atomic::AtomicU64>();
const _: () = assert!(WORD_GROUP_BYTES.is_power_of_two());

#[cfg(all(test, not(loom)))]
mod tests;
