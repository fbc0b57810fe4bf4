//! Implements the frame bitmap, which says which frames of a divided pageblock are free.
//!
//! The bitmap consists of words (see `words/frame_word.rs`). No other record says whether all
//! frames are free, so code reads all words to find out.

use super::Zone;
use super::frame_word::FrameWord;
use super::last_change::LastChange;
use super::run_shape::RunShape;
use super::word_bits::{ALL_FREE, FreedBits};
use crate::geometry::{
    BITMAP_WORD_BITS, BITMAP_WORDS, PAGEBLOCK_FRAMES, bits_of, count_ones, mask,
};
use crate::outlined::Outlined;
use core::ops::Range;

/// The frame bitmap of a pageblock, which fills two cache lines.
#[repr(C)]
pub(crate) struct FrameBitmap {
    words: [FrameWord; BITMAP_WORDS],
    /// Lets loom check that nobody uses a bitmap whose memory has another owner.
    #[cfg(loom)]
    owner_check: loom::cell::UnsafeCell<()>,
}

impl FrameBitmap {
    /// Initialises all words: each records the number of its first frame and is held, with no free
    /// frame. `start` is the number of the pageblock's first frame. Only for the code that installs
    /// the bitmap.
    pub(super) fn init(&self, start: u64) {
        let words = self.words().iter().zip(0..);
        words.for_each(|(word, i)| word.init(start + i * BITMAP_WORD_BITS as u64));
    }

    /// Writes the bitmap, with all words held. Makes every frame free except those of `taken` and
    /// `bitmap_frames`, which hold bitmaps. Both are numbers within the pageblock. If `is_zero`, marks
    /// all words: their free frames are zero. Only for the owner of the pageblock.
    ///
    /// Relaxed: the Release store of the block state that follows publishes the bitmap.
    pub(crate) fn write(&self, taken: Range<usize>, bitmap_frames: Range<usize>, is_zero: bool) {
        for (i, word) in self.words().iter().enumerate() {
            let of_word = |frames: Range<usize>| {
                let low = frames.start.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                let high = frames.end.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                mask(high) & !mask(low)
            };
            let free = ALL_FREE & !of_word(taken.clone()) & !of_word(bitmap_frames.clone());
            word.write(free, is_zero);
        }
    }

    /// Writes the bitmap as [`write`](Self::write) does, but without a free frame.
    pub(crate) fn write_taken(&self) {
        self.words().iter().for_each(|word| word.write(0, false));
    }

    /// Opens all words: ends the hold, and records that their frames are of `zone`. Only for the
    /// holder, which then makes the pageblock findable.
    pub(crate) fn open(&self, zone: Zone) {
        self.open_first(BITMAP_WORDS, zone);
    }

    fn open_first(&self, words: usize, zone: Zone) {
        self.words().iter().take(words).for_each(|word| word.open(zone));
    }

    /// Holds all words, if all frames are free and no word has flags. The caller may then take the
    /// pageblock as a whole. Otherwise, opens the words again for `zone`, the zone of the
    /// pageblock, and returns `Err` with whether any word was held for a moment. If so, the caller
    /// must make the pageblock findable.
    pub(crate) fn hold(&self, zone: Zone) -> Result<(), bool> {
        match self.words().iter().position(|word| !word.hold()) {
            None => Ok(()),
            Some(held_words) => {
                self.open_first(held_words, zone);
                Err(held_words > 0)
            }
        }
    }

    /// Prevents allocations of the pageblock's frames: flags all words as isolated.
    pub(crate) fn isolate(&self) {
        self.words().iter().for_each(FrameWord::isolate);
    }

    /// Ends [`isolate`](Self::isolate) for all words.
    pub(crate) fn release(&self) {
        self.words().iter().for_each(FrameWord::release);
    }

    /// Flags a word, so that frees of its frames check for poison. Returns the bits of its free
    /// frames.
    pub(crate) fn poison(&self, word: usize) -> u64 {
        self.word(word).poison()
    }

    /// Clears the flag of [`poison`](Self::poison) in all words.
    pub(crate) fn heal(&self) {
        self.words().iter().for_each(FrameWord::heal);
    }

    /// Flags all words as lent, because the host will be given some of the frames.
    pub(crate) fn lend(&self) {
        self.words().iter().for_each(FrameWord::lend);
    }

    /// Marks all words as words without runs, until it finds a word that is held or has a run of
    /// free frames. Returns whether all words have the mark now.
    pub(crate) fn mark_without_runs(&self) -> bool {
        self.words().iter().all(FrameWord::mark_without_runs)
    }

    /// Returns whether each word has a mark.
    pub(crate) fn is_marked(&self) -> bool {
        self.words().iter().all(FrameWord::is_marked)
    }

    /// Takes the frames of `bits` in one word, if all of them are free and may be taken.
    #[inline]
    pub(crate) fn take(&self, word: usize, bits: u64) -> bool {
        self.word(word).take(bits)
    }

    /// Returns whether all frames of `run` may be taken: a snapshot, which orders nothing.
    pub(crate) fn offers(&self, run: Range<usize>) -> bool {
        bitmap_words_of(run).all(|(word, bits)| bits & !self.takeable_in(word) == 0)
    }

    /// Takes the frames of `run`, word by word. If some of them are not free or may not be taken,
    /// returns those that it has taken, the first ones. The caller must then free these again.
    pub(crate) fn take_run(&self, run: Range<usize>) -> Result<(), Range<usize>> {
        for (word, bits) in bitmap_words_of(run.clone()) {
            if !self.take(word, bits) {
                return Err(run.start..run.start.max(word * BITMAP_WORD_BITS));
            }
        }
        Ok(())
    }

    /// Takes the frames of `bits` in one word, if all of them are free, whatever flags the word
    /// has. The caller must not allocate them to anybody.
    pub(crate) fn take_flagged(&self, word: usize, bits: u64) -> bool {
        self.word(word).take_flagged(bits)
    }

    /// Takes the first free frame of a word that is of `zone` and has no flags. Returns the index
    /// of the word, the number of the frame, and whether the word has no other free frame.
    /// `last_change` is the caller's.
    #[inline]
    pub(crate) fn take_frame_of(
        &self,
        zone: Zone,
        last_change: &LastChange,
    ) -> Option<(usize, u64, bool)> {
        let mut words = self.words().iter().enumerate();
        words.find_map(|(index, word)| {
            let frame = word.take_frame_of(zone, last_change)?;
            Some((index, frame, !word.offers_frame_of(zone)))
        })
    }

    /// Takes a run of `shape` in a word that is of `zone` and has no flags: the first one in the words
    /// from number `from` on, or else in those below. Returns the number of the word, and that of the
    /// run's first frame. `last_change` is the caller's.
    pub(super) fn take_run_of(
        &self,
        from: usize,
        zone: Zone,
        shape: RunShape,
        last_change: &LastChange,
    ) -> Option<(usize, u64)> {
        (from..from + BITMAP_WORDS).find_map(|index| {
            let index = index % BITMAP_WORDS;
            let frame = self.word(index).take_run_of(zone, shape, last_change)?;
            Some((index, frame))
        })
    }

    /// Takes a free frame of a word without flags. If there is none, takes a free frame of a word
    /// that has no flag except that of poison. Returns the number of the frame within the
    /// pageblock.
    pub(crate) fn take_any(&self) -> Option<usize> {
        let mut passes = [false, true].into_iter();
        passes.find_map(|beside_poison| {
            let mut words = self.words().iter().enumerate();
            words.find_map(|(index, word)| {
                Some(index * BITMAP_WORD_BITS + word.take_first(beside_poison)?)
            })
        })
    }

    /// Takes up to `most` free frames of words without flags, and calls `each` with the number of
    /// each frame within the pageblock. Returns how many it has taken.
    pub(crate) fn take_many(&self, most: usize, mut each: impl FnMut(usize)) -> usize {
        let mut remaining = most;
        for (i, word) in self.words().iter().enumerate() {
            loop {
                let taken = word.take_up_to(remaining);
                if taken == 0 {
                    break;
                }
                remaining -= taken.count_ones() as usize;
                bits_of(taken).for_each(|bit| each(i * BITMAP_WORD_BITS + bit));
            }
        }
        most - remaining
    }

    /// Frees the frames of `bits` in one word. Returns `None`, and changes nothing, if one of these
    /// frames is free already, or if the word is held or flagged for poison. If no frame of the
    /// word is free yet, calls `before_first` before it sets the bits.
    pub(crate) fn free(
        &self,
        word: usize,
        bits: u64,
        before_first: impl FnMut(),
    ) -> Option<FreedBits> {
        self.word(word).free(bits, before_first)
    }

    /// Frees as [`free`](Self::free) does, whatever flags the word has.
    pub(crate) fn free_flagged(
        &self,
        word: usize,
        bits: u64,
        before_first: impl FnMut(),
    ) -> Option<FreedBits> {
        self.word(word).free_flagged(bits, before_first)
    }

    /// Returns whether all frames are free and no word has flags. The load is ordered after the
    /// caller's write, which freed frames or changed a hint or a flag.
    pub(crate) fn is_all_free(&self) -> bool {
        FrameWord::are_all_free(self.words())
    }

    /// Returns whether any frame may be taken. The load is ordered after the caller's write, which
    /// freed frames or changed a hint or a flag.
    pub(crate) fn has_takeable(&self) -> bool {
        FrameWord::any_takeable(self.words())
    }

    /// Returns how many frames may be taken: a snapshot, which orders nothing.
    pub(crate) fn count_takeable(&self) -> u64 {
        self.words().iter().map(|word| count_ones(word.count_takeable())).sum()
    }

    /// Returns the number of free frames, including those that flags keep from being taken: a
    /// snapshot.
    pub(crate) fn free_frames(&self) -> u64 {
        self.free_bits().map(count_ones).sum()
    }

    /// Iterates over the bits of the words, those of the lowest frames first.
    pub(crate) fn free_bits(&self) -> impl Iterator<Item = u64> {
        self.words().iter().map(FrameWord::bits)
    }

    /// Returns whether the bit of a frame is set.
    pub(crate) fn is_free(&self, frame: usize) -> bool {
        self.word(frame / BITMAP_WORD_BITS).bits() >> (frame % BITMAP_WORD_BITS) & 1 != 0
    }

    /// Returns the bits of the free frames of one word: a snapshot, which orders nothing.
    pub(crate) fn bits_in(&self, word: usize) -> u64 {
        self.word(word).bits_now()
    }

    /// Returns the bits of the frames of one word that may be taken.
    #[inline]
    pub(crate) fn takeable_in(&self, word: usize) -> u64 {
        self.word(word).count_takeable()
    }

    /// Returns whether any word is held.
    pub(crate) fn is_held(&self) -> bool {
        self.words().iter().any(FrameWord::is_held)
    }

    /// Returns `Some(true)` if each word has the flag of isolation, and `Some(false)` if none has.
    pub(crate) fn isolation(&self) -> Option<bool> {
        let first = self.words()[0].is_isolated();
        self.words().iter().all(|word| word.is_isolated() == first).then_some(first)
    }

    /// Returns whether this is the bitmap of the pageblock whose first frame has number `start`,
    /// and its words are of `zone`.
    pub(crate) fn describes(&self, start: u64, zone: Zone) -> bool {
        let mut words = self.words().iter().zip(0..);
        words.all(|(word, i)| word.describes(start + i * BITMAP_WORD_BITS as u64, zone))
    }

    /// Returns word `index`, a number below [`BITMAP_WORDS`].
    fn word(&self, index: usize) -> &FrameWord {
        &self.words()[index % BITMAP_WORDS]
    }

    /// Returns the words. Lets loom check that the bitmap's memory has no other owner.
    fn words(&self) -> &[FrameWord; BITMAP_WORDS] {
        #[cfg(loom)]
        self.owner_check.with(|_| ());
        &self.words
    }

    #[cfg(loom)]
    pub(super) fn new() -> FrameBitmap {
        FrameBitmap {
            words: core::array::from_fn(|_| FrameWord::new()),
            owner_check: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Tells loom that an owner of the bitmap's memory writes to it.
    #[cfg(loom)]
    pub(super) fn overwrite(&self) {
        self.owner_check.with_mut(|_| ());
    }
}

/// Iterates over the words of a bitmap that have a frame of the run `frames` (numbers within the
/// pageblock). Yields the index of each word, and the bits of the run's frames in the word.
pub(crate) fn bitmap_words_of(frames: Range<usize>) -> impl Iterator<Item = (usize, u64)> + Clone {
    Outlined(words_of_run::<BITMAP_WORD_BITS>(frames))
}

/// Iterates over the words of `BITS` bits that have a bit of `run`. Yields the index of each word,
/// and the bits of the run in the word.
pub(crate) fn words_of_run<const BITS: usize>(
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
