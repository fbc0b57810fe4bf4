//! Implements the frame bitmap, which says which frames of a divided pageblock are free.
//!
//! A word has a bit for each of 32 frames, which is set while the frame is free, and flags:
//!
//! | flag | meaning |
//! |---|---|
//! | none | the pageblock is live, and anybody may take the free frames of this word |
//! | `HELD` | no frame may be taken: the pageblock is not live, or was allocated as a whole, or the holder is about to take it as a whole |
//! | `ISOLATED` | no frame may be taken: an isolation token has the pageblock |
//! | `POISON` | a free must check whether it frees a poisoned frame |
//!
//! The bits are the only record of what is free: nothing counts them. So an allocation and a free
//! are one compare-exchange each, which tests the flags as well, and a bit that is set already
//! refuses a double free. Whoever needs to know whether all frames are free reads all words.
//!
//! A word without flags proves that its pageblock is live and divided.

use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS, PAGEBLOCK_FRAMES, bits_of, mask};
use crate::sync::{AtomicU64, Ordering, mutant, sequential};
use core::ops::Range;

/// The frame bitmap of a pageblock. Two cache lines.
#[repr(C)]
pub(crate) struct FrameBitmap {
    words: [AtomicU64; BITMAP_WORDS],
    /// Lets loom check that nobody uses a bitmap whose memory has another owner.
    #[cfg(loom)]
    alone: loom::cell::UnsafeCell<()>,
}

/// The bits of a word whose frames are all free.
const ALL: u64 = mask(BITMAP_WORD_BITS);
const HELD: u64 = 1 << 32;
const ISOLATED: u64 = 1 << 33;
const POISON: u64 = 1 << 34;

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
        self.before.wrapping_sub(1) < ALL
    }

    /// Returns the bits that were set.
    pub(crate) fn bits(self) -> u64 {
        self.bits
    }

    /// Returns whether no frame of the word was free before.
    pub(crate) fn is_first(self) -> bool {
        self.before & ALL == 0
    }

    /// Returns whether all frames of the word are free now.
    #[inline]
    pub(crate) fn is_full(self) -> bool {
        self.before | self.bits == ALL
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
}

impl FrameBitmap {
    /// Writes the bitmap, held: every frame is free but those of `taken` and the frame `lent`,
    /// which holds bitmaps (all relative to the pageblock). For the owner of the pageblock only.
    ///
    /// Relaxed: published by the Release store of the block state that follows.
    pub(crate) fn write(&self, taken: Range<usize>, lent: Option<usize>) {
        self.used();
        for (i, word) in self.words.iter().enumerate() {
            let of_word = |frames: Range<usize>| {
                let low = frames.start.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                let high = frames.end.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                mask(high) & !mask(low)
            };
            let lent = lent.map_or(0, |frame| of_word(frame..frame + 1));
            word.store(ALL & !of_word(taken.clone()) & !lent | HELD, Ordering::Relaxed);
        }
    }

    /// Writes a held bitmap of which no frame is free, as [`write`](Self::write) does.
    pub(crate) fn write_taken(&self) {
        self.used();
        self.words.iter().for_each(|word| word.store(HELD, Ordering::Relaxed));
    }

    /// Lets go of all words. For the holder only, which then makes the pageblock findable.
    /// `SeqCst`: Release pairs with [`take`](Self::take); the holder reads the bits afterwards.
    pub(crate) fn open(&self) {
        self.open_first(BITMAP_WORDS);
    }

    fn open_first(&self, words: usize) {
        self.used();
        self.words[..words].iter().for_each(|word| {
            word.fetch_and(!HELD, Ordering::SeqCst);
        });
    }

    /// Holds all words, if all frames are free and no word has flags: the caller may take the
    /// pageblock as a whole. Otherwise, lets go again and returns `Err`, with whether it held any
    /// word meanwhile: then the caller must make the pageblock findable.
    ///
    /// AcqRel: Acquire pairs with the Release of the frees.
    pub(crate) fn hold(&self) -> Result<(), bool> {
        self.used();
        let other = self.words.iter().position(|word| {
            word.compare_exchange(ALL, ALL | HELD, Ordering::AcqRel, Ordering::Relaxed).is_err()
        });
        match other {
            None => Ok(()),
            Some(held) => {
                self.open_first(held);
                Err(held > 0)
            }
        }
    }

    /// Keeps everybody from taking frames. AcqRel: Acquire pairs with the Release of the frees, and
    /// Release so that a drained pageblock is seen with the flag.
    pub(crate) fn isolate(&self) {
        self.used();
        self.words.iter().for_each(|word| {
            word.fetch_or(ISOLATED, Ordering::AcqRel);
        });
    }

    /// Ends [`isolate`](Self::isolate). Release pairs with [`take`](Self::take).
    pub(crate) fn release(&self) {
        self.used();
        self.words.iter().for_each(|word| {
            word.fetch_and(!ISOLATED, Ordering::AcqRel);
        });
    }

    /// Makes frees into this word check for poison, and returns the bits that are set. AcqRel: a
    /// later free sees which frames are poisoned, and an earlier one is seen.
    pub(crate) fn poison(&self, word: usize) -> u64 {
        self.used();
        self.words[word].fetch_or(POISON, Ordering::AcqRel) & ALL
    }

    /// Ends [`poison`](Self::poison) for all words.
    pub(crate) fn heal(&self) {
        self.used();
        self.words.iter().for_each(|word| {
            word.fetch_and(!POISON, Ordering::SeqCst);
        });
    }

    /// Takes `bits` of one word, if all are free and may be taken.
    ///
    /// AcqRel: Acquire pairs with [`give`](Self::give), so that the new owner of the frames comes
    /// after the old one. Release pairs with the fence in `Watch::was_quiet`: a search that finds
    /// these frames taken also sees the moves that the taker has seen.
    #[inline]
    pub(crate) fn take(&self, word: usize, bits: u64) -> bool {
        self.take_unless(HELD | ISOLATED, word, bits)
    }

    /// Takes `bits` of one word out of use, if all are free, whatever the word's flags are.
    /// AcqRel: see [`take`](Self::take).
    pub(crate) fn take_out(&self, word: usize, bits: u64) -> bool {
        self.take_unless(0, word, bits)
    }

    fn take_unless(&self, flags: u64, word: usize, bits: u64) -> bool {
        self.used();
        let word = &self.words[word];
        let mut now = word.load(Ordering::Relaxed);
        while now & (bits | flags) == bits {
            match word.compare_exchange_weak(now, now & !bits, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Takes the first free frame of word `at`, a number below [`BITMAP_WORDS`], if the word has no
    /// flags and nobody else changes it meanwhile. AcqRel: see [`take`](Self::take).
    #[inline]
    pub(crate) fn take_in(&self, at: usize) -> Option<usize> {
        self.used();
        let at = at % BITMAP_WORDS;
        let word = &self.words[at];
        let now = word.load(Ordering::Relaxed);
        let below = now.wrapping_sub(1);
        if below >= ALL {
            return None; // no frame is free, or the word has flags
        }
        word.compare_exchange(now, now & below, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(at * BITMAP_WORD_BITS + now.trailing_zeros() as usize)
    }

    /// Takes a free frame of any word without flags. AcqRel: see [`take`](Self::take).
    pub(crate) fn take_any(&self) -> Option<usize> {
        (0..BITMAP_WORDS).find_map(|at| self.take_first(at, ALL))
    }

    /// Does the same in words with or without poison.
    pub(crate) fn take_any_beside_poison(&self) -> Option<usize> {
        self.take_any()
            .or_else(|| (0..BITMAP_WORDS).find_map(|at| self.take_first(at, ALL | POISON)))
    }

    #[inline(always)]
    fn take_first(&self, at: usize, allowed: u64) -> Option<usize> {
        self.used();
        let word = &self.words[at];
        let mut now = word.load(Ordering::Relaxed);
        while is_within(now, allowed) && now & ALL != 0 {
            let rest = now & (now - 1);
            match word.compare_exchange_weak(now, rest, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(at * BITMAP_WORD_BITS + now.trailing_zeros() as usize),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Takes up to `most` free frames of words without flags, and calls `each` with each of them.
    /// AcqRel: see [`take`](Self::take).
    pub(crate) fn take_many(&self, most: usize, mut each: impl FnMut(usize)) -> usize {
        self.used();
        let mut left = most;
        for (i, word) in self.words.iter().enumerate() {
            let mut now = word.load(Ordering::Relaxed);
            while now != 0 && is_within(now, ALL) && left > 0 {
                let taken = lowest(now, left);
                match word.compare_exchange_weak(
                    now,
                    now & !taken,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        left -= taken.count_ones() as usize;
                        bits_of(taken).for_each(|bit| each(i * BITMAP_WORD_BITS + bit));
                        now &= !taken;
                    }
                    Err(seen) => now = seen,
                }
            }
        }
        most - left
    }

    /// Sets `bits` of one word without flags of which some frames are free, but not these, if nobody
    /// else changes it meanwhile. Returns `None`, and changes nothing, otherwise. Such a free needs
    /// no more than this, unless all frames of the word are free now. `SeqCst`: see
    /// [`give`](Self::give).
    #[inline]
    pub(crate) fn give_beside_free(&self, word: usize, bits: u64) -> Option<Given> {
        self.used();
        let word = &self.words[word];
        let before = word.load(Ordering::Relaxed);
        if before & bits != 0 || before.wrapping_sub(1) >= ALL {
            return None;
        }
        let after = before | bits;
        word.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        Some(Given { before, bits })
    }

    /// Sets `bits` of one word that is neither held nor flagged for poison, if none of them is set
    /// already. Returns `None`, and changes nothing, if the word is another one. Calls `first` before
    /// it sets the first bits of a word: a search may have looked there already.
    ///
    /// `SeqCst`: Release pairs with [`take`](Self::take). Beyond that, a free that changes what can
    /// be found next looks at other words and hints, whose writers look at this word.
    pub(crate) fn give(&self, word: usize, bits: u64, first: impl FnMut()) -> Option<Given> {
        self.give_unless(HELD | POISON, word, bits, first)
    }

    /// Does the same in a word with any flags.
    pub(crate) fn give_part(&self, word: usize, bits: u64, first: impl FnMut()) -> Option<Given> {
        self.give_unless(0, word, bits, first)
    }

    #[inline(always)]
    fn give_unless(
        &self,
        flags: u64,
        word: usize,
        bits: u64,
        mut first: impl FnMut(),
    ) -> Option<Given> {
        self.used();
        let word = &self.words[word];
        // Acquire: a caller that gets `None` because of a flag sees what was done before it was set.
        let mut now = word.load(Ordering::Acquire);
        while now & (bits | flags) == 0 {
            if now & ALL == 0 {
                first();
            }
            match word.compare_exchange_weak(now, now | bits, Ordering::SeqCst, Ordering::Acquire) {
                Ok(before) => return Some(Given { before, bits }),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Returns whether all frames are free and no word has flags. `SeqCst`: the caller has freed
    /// frames, or has changed a hint or a flag before.
    pub(crate) fn is_all_free(&self) -> bool {
        self.used();
        sequential();
        self.words.iter().all(|word| word.load(Ordering::SeqCst) == ALL)
    }

    /// Returns whether some frames may be taken. `SeqCst`: as for
    /// [`is_all_free`](Self::is_all_free).
    pub(crate) fn has_some(&self) -> bool {
        self.used();
        sequential();
        let is_takeable = |now| now & (HELD | ISOLATED) == 0 && now & ALL != 0;
        let mut words = self.words.iter().map(|word| word.load(Ordering::SeqCst));
        let any = words.clone().fold(0, core::ops::BitOr::bitor);
        // Most often, no word has a flag.
        is_takeable(any) || (any & ALL != 0 && words.any(is_takeable))
    }

    /// Returns how many frames may be taken. A snapshot.
    pub(crate) fn takeable(&self) -> usize {
        self.used();
        let words = self.words.iter().map(|word| word.load(Ordering::Acquire));
        let words = words.filter(|now| now & (HELD | ISOLATED) == 0);
        words.map(|now| (now & ALL).count_ones() as usize).sum()
    }

    /// Returns how many frames are free by the bits. A snapshot.
    pub(crate) fn free_frames(&self) -> usize {
        self.free_bits().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Iterates over the words' bits, the lowest frames first. Acquire pairs with the Release of
    /// the frees.
    pub(crate) fn free_bits(&self) -> impl Iterator<Item = u64> {
        self.used();
        self.words.iter().map(|word| word.load(Ordering::Acquire) & ALL)
    }

    /// Returns whether a frame is free by its bit. Acquire: as in [`free_bits`](Self::free_bits).
    pub(crate) fn is_free(&self, frame: usize) -> bool {
        self.used();
        let word = self.words[frame / BITMAP_WORD_BITS].load(Ordering::Acquire);
        word >> (frame % BITMAP_WORD_BITS) & 1 != 0
    }

    /// Returns the bits of one word. A snapshot.
    pub(crate) fn bits_in(&self, word: usize) -> u64 {
        self.used();
        self.words[word].load(Ordering::Relaxed) & ALL
    }

    /// Returns the frames of one word that may be taken.
    pub(crate) fn takeable_in(&self, word: usize) -> u64 {
        self.used();
        let now = self.words[word].load(Ordering::Relaxed);
        if now & (HELD | ISOLATED) == 0 { now & ALL } else { 0 }
    }

    /// Returns whether a word is held. Acquire pairs with the Release of the holder.
    pub(crate) fn is_held(&self) -> bool {
        self.used();
        self.words.iter().any(|word| word.load(Ordering::Acquire) & HELD != 0)
    }

    /// Returns whether each word has the flag of isolation (`Some(true)`), or none has.
    pub(crate) fn isolation(&self) -> Option<bool> {
        let isolated = |word: &AtomicU64| word.load(Ordering::Acquire) & ISOLATED != 0;
        let first = isolated(&self.words[0]);
        self.words.iter().all(|word| isolated(word) == first).then_some(first)
    }

    #[cfg(loom)]
    pub(super) fn new() -> FrameBitmap {
        FrameBitmap {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
            alone: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Tells loom that the memory of the bitmap is written as something else.
    #[cfg(loom)]
    pub(super) fn overwrite(&self) {
        self.alone.with_mut(|_| ());
    }

    /// Tells loom that the bitmap is in use.
    #[inline]
    fn used(&self) {
        #[cfg(loom)]
        self.alone.with(|_| ());
    }
}

/// Returns whether a word has no other bits than `allowed`, which are all bits from 0 on, with or
/// without the flag of poison.
#[inline]
fn is_within(now: u64, allowed: u64) -> bool {
    mutant!("an allocation does not look at the flags" => return true);
    now & !allowed == 0
}

/// Returns the lowest `n` set bits, or all of them if there are no more.
fn lowest(word: u64, n: usize) -> u64 {
    let rest = (0..n).fold(word, |rest, _| rest & rest.wrapping_sub(1));
    word & !rest
}

/// Returns a run of frames of a pageblock as words of its bitmap.
#[inline]
pub(crate) fn words_of(frames: Range<usize>) -> impl Iterator<Item = (usize, u64)> + Clone {
    words_with::<BITMAP_WORD_BITS>(frames)
}

/// Returns a run of bits as words that have `BITS` bits each.
#[inline]
pub(crate) fn words_with<const BITS: usize>(
    run: Range<usize>,
) -> impl Iterator<Item = (usize, u64)> + Clone {
    let words = run.start / BITS..run.end.div_ceil(BITS);
    let words = if run.is_empty() { 0..0 } else { words };
    words.map(move |word| {
        let base = word * BITS;
        let from = run.start.saturating_sub(base);
        let to = (run.end - base).min(BITS);
        (word, mask(to) & !mask(from))
    })
}

const _: () = assert!(PAGEBLOCK_FRAMES.is_multiple_of(BITMAP_WORD_BITS) && BITMAP_WORD_BITS <= 32);
