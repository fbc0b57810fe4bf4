//! Remembers where a CPU freed a frame last, so that the next free needs no look-up.
//!
//! The bitmaps of 32 pageblocks lie in one frame of memory, and each of their words records its
//! first frame. So one pointer into these bitmaps serves the frees of all frames of these
//! pageblocks (64 MiB).
//!
//! **The memory of the bitmaps.** The pointer is set only to lasting bitmaps, which stay for as long
//! as the instance exists. The pointer hides no memory from searches.

use super::bitmaps::WordPtr;
use super::frame_word::{FrameWord, WORD_GROUP_BYTES};
use super::last_change::LastChange;
use super::word_bits::FreedBits;
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, GROUP_FRAMES};
use crate::sync::{AtomicPtr, Ordering, const_unless_loom};
use core::ptr::null_mut;

/// A CPU's pointer into the bitmaps that describe the frame that it freed last, or null.
pub(crate) struct LastFreed(AtomicPtr<FrameWord>);

impl LastFreed {
    const_unless_loom! {
        pub(crate) fn new() -> LastFreed {
            LastFreed(AtomicPtr::new(null_mut()))
        }
    }

    /// Frees a frame, if the bitmaps that the pointer leads to describe the frame, and if the free
    /// has nothing to do but to set a bit. Otherwise returns `None`, and changes nothing.
    /// `last_change` is the same CPU's.
    #[inline(always)]
    pub(crate) fn free(&self, frame: Pfn, last_change: &LastChange) -> Option<FreedBits> {
        // Acquire pairs with `point_to`, by another CPU.
        let word = self.0.load(Ordering::Acquire);
        if word.is_null() {
            return None;
        }
        // SAFETY: `word_of` returns a word in the frame of lasting bitmaps that the pointer leads to,
        // which stays for as long as the instance exists.
        unsafe { &*word_of(word, frame) }.free_one(frame, last_change)
    }

    /// Returns the word of the frames of `bits`, of which the first is `start`, and their free as it
    /// would be, if the bitmaps that the pointer leads to describe these frames, and the word has no
    /// flag and no mark. Changes nothing. If the guess of `last_change`, which is the same CPU's, is
    /// wrong, so is the result, and [`WordPtr::free`] fails.
    #[inline(always)]
    pub(crate) fn plan_free(
        &self,
        start: Pfn,
        bits: u64,
        last_change: &LastChange,
    ) -> Option<(WordPtr, FreedBits)> {
        // Acquire: as in `free`.
        let word = self.0.load(Ordering::Acquire);
        if word.is_null() {
            return None;
        }
        let word = word_of(word, start);
        // SAFETY: as in `free`.
        let freed = unsafe { &*word }.plan_likely_free(bits, last_change)?;
        freed.is_of_open_word_in_group_of(start).then_some((WordPtr(word), freed))
    }

    /// Returns the word of `frame`, if the bitmaps that the pointer leads to describe the frame.
    #[inline(always)]
    pub(crate) fn word_of(&self, frame: Pfn) -> Option<WordPtr> {
        // Acquire: as in `free`.
        let word = self.0.load(Ordering::Acquire);
        if word.is_null() {
            return None;
        }
        let word = WordPtr(word_of(word, frame));
        word.get().is_in_group_of(frame).then_some(word)
    }

    /// Makes the pointer lead to the bitmaps in which this word lies.
    #[inline(always)]
    pub(crate) fn point_to(&self, word: WordPtr) {
        // Release pairs with the Acquire of `free`, which so sees the bitmaps initialised.
        self.0.store(word.0, Ordering::Release);
    }
}

/// Returns the word of `frame`, if the bitmaps that have word `word` describe the frame. Otherwise
/// returns another word of these bitmaps.
#[inline(always)]
fn word_of(word: *mut FrameWord, frame: Pfn) -> *mut FrameWord {
    #[allow(clippy::cast_possible_truncation, reason = "within the frame of bitmaps")]
    let word_index = (frame.number() % GROUP_FRAMES as u64) as usize / BITMAP_WORD_BITS;
    let byte_offset = word_index * size_of::<FrameWord>();
    // In a model, bitmaps are not aligned to frames, so only frames of this very word are freed.
    if cfg!(loom) {
        word
    } else {
        word.map_addr(|word| word & !(WORD_GROUP_BYTES - 1)).wrapping_byte_add(byte_offset)
    }
}
