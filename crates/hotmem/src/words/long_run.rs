//! Finds, takes and frees runs that are longer than a word of a frame bitmap, but short enough for a
//! part of a bitmap: *long runs*. A long run begins at the first frame of a word and has all frames
//! of that word.
//!
//! One compare-exchange for each word takes or frees a run. All open words of a pageblock whose
//! frames are all free have the same value, and so have all open words that have no free frame. So
//! the value of the first word is what the other words must have, and one comparison tests their
//! frames, their flags and their zone. There is one exception: words whose frames are all free and known
//! to be zero have a mark. So a run of words with and without marks is left to the general search.
//!
//! A change by another CPU may end an operation between two words. The caller is then told how many
//! words were changed, and completes or undoes the operation.

use super::Zone;
use super::bitmaps::{Bitmaps, WordPtr};
use super::frame_word::FrameWord;
use super::word_bits::{ALL_FREE, offers_bits, value_of_word_after};
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS, SMALL_FRAMES, mask};

/// The length and the alignment of a long run. The lower half is the number of frames. The upper half
/// has those bits that the number of its first word must not have, and the bit [`LONG`]. If the request
/// is a constant, so is its shape; and it fits into one register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LongShape(u64);

/// A long run: its first word, the value that this word had, and its length.
#[derive(Clone, Copy)]
pub(crate) struct LongRun {
    word: WordPtr,
    value: u64,
    frames: u32,
}

const WORD: u64 = BITMAP_WORD_BITS as u64;

/// A bit that each shape has, so that its upper half is not 0, and that no
/// [`RunShape`](super::RunShape) has, because no run of several frames starts at the last bit.
const LONG: u64 = 1 << 63;

impl LongShape {
    /// Returns the shape of a run of `frames` frames that starts at a multiple of `align`, a power of
    /// two that is at most a pageblock. Returns `None` if such a run fits into a word, or is too long;
    /// and if `align` is 0, which no request may have.
    #[inline(always)]
    pub(crate) fn new(frames: u64, align: u64) -> Option<LongShape> {
        let is_long = frames > WORD && frames <= SMALL_FRAMES as u64;
        let below_align = align.checked_sub(1).filter(|_| is_long)?;
        Some(LongShape(LONG | (below_align / WORD) << 32 | frames))
    }

    /// Returns both halves as one number.
    #[inline(always)]
    pub(super) fn to_bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
    fn frames(self) -> u32 {
        self.0 as u32
    }

    /// Returns the bits that a word's number has only if no run of this shape may begin at the word.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "less than the words of a pageblock")]
    fn misaligned_bits(self) -> usize {
        (self.0 >> 32) as usize % BITMAP_WORDS
    }
}

impl LongRun {
    /// Returns the run of `shape` that begins at the first frame of `word`, if its frames are free, and
    /// the words are of `zone` and have no flags. This is a snapshot, which orders nothing. Otherwise,
    /// returns how many words later the next such run may begin at the earliest, at least 1.
    #[inline(always)]
    pub(crate) fn free_at(word: WordPtr, zone: Zone, shape: LongShape) -> Result<LongRun, usize> {
        let run = LongRun { word, value: word.get().value(), frames: shape.frames() };
        if word.get().index() & shape.misaligned_bits() != 0
            || !offers_bits(run.value, zone, ALL_FREE)
        {
            return Err(1);
        }
        match run.blocked_word(|rest, bits| rest.offers_bits_of(zone, bits)) {
            None => Ok(run),
            Some(word) => Err(word + 1),
        }
    }

    /// Returns the run of `shape` whose first frame is `start`, a frame of `word`, and its zone. Returns
    /// `None` if the run does not begin at the first frame of a word or does not lie within the
    /// pageblock; if a frame of it is free; if a word of it has a flag or the mark `MARK`; or if
    /// frames of its pageblock were lent. This is a snapshot, which orders nothing.
    #[inline(always)]
    pub(crate) fn allocated_at(
        word: WordPtr,
        start: Pfn,
        shape: LongShape,
    ) -> Option<(LongRun, Zone)> {
        if !start.number().is_multiple_of(WORD) {
            return None;
        }
        let freed = word.get().plan_open_free(ALL_FREE)?;
        let run = LongRun { word, value: freed.change().0, frames: shape.frames() };
        let blocked = run.blocked_word(|rest, bits| rest.plan_open_free(bits).is_some());
        blocked.is_none().then(|| (run, freed.zone()))
    }

    /// Returns the first word of the run.
    pub(crate) fn word(&self) -> WordPtr {
        self.word
    }

    /// Returns the number of the first frame.
    #[inline(always)]
    pub(crate) fn start(&self) -> u64 {
        self.word.get().first_frame(self.value)
    }

    /// Iterates over the words that have frames of the run: the number of each in the bitmap, and the
    /// bits of these frames.
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, u64)> {
        let rest = mask(self.frames as usize % BITMAP_WORD_BITS);
        let bits = core::iter::repeat_n(ALL_FREE, self.whole_words());
        (self.word.get().index()..).zip(bits.chain((rest != 0).then_some(rest)))
    }

    /// Takes the frames of the run, word by word, if they are free, and the words have no flags.
    /// Otherwise returns how many words it has taken, the first ones.
    ///
    /// Once it has taken a frame, the pageblock stays live and divided, and in its zone.
    #[inline(always)]
    pub(crate) fn take(&self, zone: Zone) -> Result<(), usize> {
        self.change(FrameWord::take_all, |word, bits| word.take_bits_if_of(zone, bits))
    }

    /// Frees the frames of the run, word by word, if none of them is free, and the words have neither
    /// flags nor marks, nor were lent. Otherwise returns how many words it has freed, the first ones.
    /// The caller must have counted a hiding step.
    #[inline(always)]
    pub(crate) fn free(&self) -> Result<(), usize> {
        self.change(FrameWord::free_all, FrameWord::free_bits_if_open)
    }

    /// Changes each word whose frames are all of the run by `whole`, and then the word of the rest by
    /// `rest`, until one of them returns false.
    #[inline(always)]
    fn change(
        &self,
        whole: impl Fn(&FrameWord, u64) -> bool,
        rest: impl Fn(&FrameWord, u64) -> bool,
    ) -> Result<(), usize> {
        let mut value = self.value;
        let Some(words) = self.word.words(self.whole_words()) else { return Err(0) };
        for (index, word) in words.iter().enumerate() {
            if !whole(word, value) {
                return Err(index);
            }
            value = value_of_word_after(value);
        }
        match LongRun::all_of_rest(self.word, self.frames, rest) {
            true => Ok(()),
            false => Err(words.len()),
        }
    }

    /// Returns the first word that does not have the value of the run; or the word of the rest, if
    /// `rest` returns false for it; or the first word that the bitmap does not have.
    #[inline(always)]
    fn blocked_word(&self, rest: impl Fn(&FrameWord, u64) -> bool) -> Option<usize> {
        let count = self.whole_words();
        let Some([_, others @ ..]) = self.word.words(count) else { return Some(count) };
        let mut value = self.value;
        let other = others.iter().position(|word| {
            value = value_of_word_after(value);
            word.value() != value
        });
        match other {
            Some(index) => Some(index + 1),
            None => (!LongRun::all_of_rest(self.word, self.frames, rest)).then_some(count),
        }
    }

    /// Returns the number of words whose frames are all of the run.
    #[inline(always)]
    fn whole_words(&self) -> usize {
        self.frames as usize / BITMAP_WORD_BITS
    }

    /// Returns true if the run has no frames in the word after these. Otherwise calls `rest` with this
    /// word and their bits there.
    #[inline(always)]
    fn all_of_rest(word: WordPtr, frames: u32, rest: impl Fn(&FrameWord, u64) -> bool) -> bool {
        (frames as usize).is_multiple_of(BITMAP_WORD_BITS) || LongRun::rest_of(word, frames, rest)
    }

    #[cold]
    fn rest_of(word: WordPtr, frames: u32, rest: impl Fn(&FrameWord, u64) -> bool) -> bool {
        let frames = frames as usize;
        let words = word.words(frames / BITMAP_WORD_BITS + 1);
        words.is_some_and(|words| {
            words.last().is_some_and(|word| rest(word, mask(frames % BITMAP_WORD_BITS)))
        })
    }
}

impl Bitmaps {
    /// Returns the lowest free run of `shape` in pageblock `bit`, if it has a lasting bitmap: as
    /// [`LongRun::free_at`].
    pub(crate) fn lowest_long_run(
        &self,
        bit: usize,
        zone: Zone,
        shape: LongShape,
    ) -> Option<LongRun> {
        let mut index = 0;
        while index < BITMAP_WORDS {
            match LongRun::free_at(self.lasting_word(bit, index)?, zone, shape) {
                Ok(run) => return Some(run),
                Err(skipped) => {
                    index = (index + skipped).next_multiple_of(shape.misaligned_bits() + 1)
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
