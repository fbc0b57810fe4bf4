//! Implements the frame bitmap, which says which frames of a divided pageblock are free.
//!
//! The bitmap consists of words (see `words/frame_word.rs`). To know whether all frames are free,
//! code reads all words.

use super::Zone;
use super::frame_word::FrameWord;
use super::word_bits::{ALL, FreedBits};
use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS, PAGEBLOCK_FRAMES, bits_of, mask};
use core::ops::Range;

/// The frame bitmap of a pageblock, which fills two cache lines.
#[repr(C)]
pub(crate) struct FrameBitmap {
    words: [FrameWord; BITMAP_WORDS],
    /// Lets loom check that nobody uses a bitmap whose memory has another owner.
    #[cfg(loom)]
    alone: loom::cell::UnsafeCell<()>,
}

impl FrameBitmap {
    /// Initialises all words: each records which frames it has, and is held, with no free frame.
    /// `start` is the number of the pageblock's first frame. Only for the code that installs the
    /// bitmap.
    pub(super) fn init(&self, start: u64) {
        let words = self.words().iter().zip(0..);
        words.for_each(|(word, i)| word.init(start + i * BITMAP_WORD_BITS as u64));
    }

    /// Writes the bitmap, with all words held. Every frame is free, except those of `taken` and the
    /// one that holds bitmaps, `bitmap_frame` (both are numbers within the pageblock). Only for the
    /// owner of the pageblock.
    ///
    /// Relaxed: the Release store of the block state that follows publishes the bitmap.
    pub(crate) fn write(&self, taken: Range<usize>, bitmap_frame: Option<usize>) {
        for (i, word) in self.words().iter().enumerate() {
            let of_word = |frames: Range<usize>| {
                let low = frames.start.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                let high = frames.end.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                mask(high) & !mask(low)
            };
            let bitmap_bit = bitmap_frame.map_or(0, |frame| of_word(frame..frame + 1));
            word.write(ALL & !of_word(taken.clone()) & !bitmap_bit);
        }
    }

    /// Writes a bitmap without free frames, with all words held, as [`write`](Self::write) does.
    pub(crate) fn write_taken(&self) {
        self.words().iter().for_each(|word| word.write(0));
    }

    /// Opens all words: ends the hold, and records that their frames are of `zone`. Only for the
    /// holder, which then makes the pageblock findable.
    pub(crate) fn open(&self, zone: Zone) {
        self.open_first(BITMAP_WORDS, zone);
    }

    fn open_first(&self, words: usize, zone: Zone) {
        self.words()[..words].iter().for_each(|word| word.open(zone));
    }

    /// Holds all words, if all frames are free and no word has flags. The caller may then take the
    /// pageblock, which is of `zone`, as a whole. Otherwise, opens the words again and returns
    /// `Err`, with whether any word was held for a moment: if so, the caller must make the
    /// pageblock findable.
    pub(crate) fn hold(&self, zone: Zone) -> Result<(), bool> {
        match self.words().iter().position(|word| !word.hold()) {
            None => Ok(()),
            Some(held) => {
                self.open_first(held, zone);
                Err(held > 0)
            }
        }
    }

    /// Prevents allocations from the bitmap: flags all words as isolated.
    pub(crate) fn isolate(&self) {
        self.words().iter().for_each(FrameWord::isolate);
    }

    /// Ends [`isolate`](Self::isolate) for all words.
    pub(crate) fn release(&self) {
        self.words().iter().for_each(FrameWord::release);
    }

    /// Flags a word, so that frees into it check for poison. Returns the bits of its free frames.
    pub(crate) fn poison(&self, word: usize) -> u64 {
        self.words()[word].poison()
    }

    /// Ends [`poison`](Self::poison) for all words.
    pub(crate) fn heal(&self) {
        self.words().iter().for_each(FrameWord::heal);
    }

    /// Flags all words, because the host will be given some of the frames.
    pub(crate) fn lend(&self) {
        self.words().iter().for_each(FrameWord::lend);
    }

    /// Takes the frames of `bits` in one word, if all of them are free and may be taken.
    #[inline]
    pub(crate) fn take(&self, word: usize, bits: u64) -> bool {
        self.words()[word].take(bits)
    }

    /// Takes the frames of `bits` in one word out of use, if all of them are free, whatever flags
    /// the word has.
    pub(crate) fn take_out(&self, word: usize, bits: u64) -> bool {
        self.words()[word].take_out(bits)
    }

    /// Takes the first free frame of a word that is of `zone` and has no flags. Returns the number
    /// of the word, the number of the frame, and whether the word has no other free frame.
    #[inline]
    pub(crate) fn take_one_of(&self, zone: Zone) -> Option<(usize, u64, bool)> {
        let mut words = self.words().iter().enumerate();
        words.find_map(|(at, word)| {
            let frame = word.take_one_of(zone)?;
            Some((at, frame, !word.offers_one_of(zone)))
        })
    }

    /// Takes a free frame of any word without flags, or, if there is none, of a word that has only
    /// the flag of poison.
    pub(crate) fn take_any(&self) -> Option<usize> {
        let mut passes = [false, true].into_iter();
        passes.find_map(|beside_poison| {
            let mut words = self.words().iter().enumerate();
            words.find_map(|(at, word)| {
                Some(at * BITMAP_WORD_BITS + word.take_first(beside_poison)?)
            })
        })
    }

    /// Takes up to `most` free frames of words without flags, and calls `each` with each of them.
    pub(crate) fn take_many(&self, most: usize, mut each: impl FnMut(usize)) -> usize {
        let mut left = most;
        for (i, word) in self.words().iter().enumerate() {
            loop {
                let taken = word.take_some(left);
                if taken == 0 {
                    break;
                }
                left -= taken.count_ones() as usize;
                bits_of(taken).for_each(|bit| each(i * BITMAP_WORD_BITS + bit));
            }
        }
        most - left
    }

    /// Frees the frames of `bits` in one word. Returns `None`, and changes nothing, if one of them
    /// is free already, or if the word is held or flagged for poison. If no frame of the word is
    /// free yet, calls `first` before it sets the bits.
    pub(crate) fn free(&self, word: usize, bits: u64, first: impl FnMut()) -> Option<FreedBits> {
        self.words()[word].free(bits, first)
    }

    /// Does the same as [`free`](Self::free), whatever flags the word has.
    pub(crate) fn free_flagged(
        &self,
        word: usize,
        bits: u64,
        first: impl FnMut(),
    ) -> Option<FreedBits> {
        self.words()[word].free_flagged(bits, first)
    }

    /// Returns whether all frames are free and no word has flags. Callers have freed frames, or
    /// have changed a hint or a flag, before they call this.
    pub(crate) fn is_all_free(&self) -> bool {
        FrameWord::are_all_free(self.words())
    }

    /// Returns whether some frames may be taken. Callers have freed frames, or have changed a hint
    /// or a flag, before they call this.
    pub(crate) fn has_some(&self) -> bool {
        FrameWord::offer_some(self.words())
    }

    /// Returns how many frames may be taken. A snapshot.
    pub(crate) fn takeable(&self) -> usize {
        self.words().iter().map(|word| word.takeable().count_ones() as usize).sum()
    }

    /// Returns how many bits are set: the number of free frames, including those that flags keep
    /// from being taken. A snapshot.
    pub(crate) fn free_frames(&self) -> usize {
        self.free_bits().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Iterates over the bits of the words, those of the lowest frames first.
    pub(crate) fn free_bits(&self) -> impl Iterator<Item = u64> {
        self.words().iter().map(FrameWord::bits)
    }

    /// Returns whether the bit of a frame is set.
    pub(crate) fn is_free(&self, frame: usize) -> bool {
        self.words()[frame / BITMAP_WORD_BITS].bits() >> (frame % BITMAP_WORD_BITS) & 1 != 0
    }

    /// Returns the bits of one word. A snapshot.
    pub(crate) fn bits_in(&self, word: usize) -> u64 {
        self.words()[word].bits_now()
    }

    /// Returns the bits of the frames of one word that may be taken.
    pub(crate) fn takeable_in(&self, word: usize) -> u64 {
        self.words()[word].takeable()
    }

    /// Returns whether a word is held.
    pub(crate) fn is_held(&self) -> bool {
        self.words().iter().any(FrameWord::is_held)
    }

    /// Returns `Some(true)` if each word has the flag of isolation, and `Some(false)` if none has.
    pub(crate) fn isolation(&self) -> Option<bool> {
        let first = self.words()[0].is_isolated();
        self.words().iter().all(|word| word.is_isolated() == first).then_some(first)
    }

    /// Returns whether this is the bitmap of the frames from number `start` on, and these are of
    /// `zone`.
    pub(crate) fn describes(&self, start: u64, zone: Zone) -> bool {
        let mut words = self.words().iter().zip(0..);
        words.all(|(word, i)| word.describes(start + i * BITMAP_WORD_BITS as u64, zone))
    }

    /// Returns the words. The caller may use the bitmap.
    #[inline]
    fn words(&self) -> &[FrameWord; BITMAP_WORDS] {
        #[cfg(loom)]
        self.alone.with(|_| ());
        &self.words
    }

    #[cfg(loom)]
    pub(super) fn new() -> FrameBitmap {
        FrameBitmap {
            words: core::array::from_fn(|_| FrameWord::new()),
            alone: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Tells loom that the memory of the bitmap is written as something else.
    #[cfg(loom)]
    pub(super) fn overwrite(&self) {
        self.alone.with_mut(|_| ());
    }
}

/// Returns the words of a bitmap in which a run of frames of a pageblock lies, each with the bits
/// of these frames.
#[inline]
pub(crate) fn words_of(frames: Range<usize>) -> impl Iterator<Item = (usize, u64)> + Clone {
    words_with::<BITMAP_WORD_BITS>(frames)
}

/// Returns the words in which a run of bits lies, if each has `BITS` bits, each with the bits of
/// the run.
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
