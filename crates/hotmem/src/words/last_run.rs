//! Remembers where a CPU allocated a run last, so that the next one like it needs no look-up.
//!
//! A run comes from the lowest word of the hinted pageblock that has such a run. This keeps the free
//! frames together, but a search reads all lower words. The record says where the last search for a
//! run of the same shape has ended, so that the next search need not begin at the first word.
//!
//! The record is only a guess: a take is a compare-exchange of the whole run, which fails if a frame
//! is not free, and a search reads all words before it fails. So only the speed and the order of the
//! words depend on it. The record hides no memory. It leads to lasting bitmaps, which stay for as
//! long as the instance exists.
//!
//! Loom does not see these accesses; in a model there are no guesses, as in `words/last_change.rs`.

use super::bitmaps::{Bitmaps, WordPtr};
use super::frame_word::FrameWord;
use super::last_change::LastChange;
use super::long_run::{LongRun, LongShape};
use super::run_shape::RunShape;
use super::{Hint, Zone};
use crate::geometry::mask;
use crate::sync::{AtomicU64, Ordering, const_unless_loom, untracked};
use core::ptr::null_mut;

/// The word from which a CPU took a run last, and the run's shape.
pub(crate) struct LastRun {
    /// The key of the run's shape and of the hint of the word's pageblock. Written after the word.
    key: AtomicU64,
    /// The lowest word of the pageblock that probably has a run of this shape. Null until the CPU has
    /// allocated a run.
    word: untracked::AtomicPtr<FrameWord>,
}

impl LastRun {
    const_unless_loom! {
        pub(crate) fn new() -> LastRun {
            LastRun {
                key: AtomicU64::new(NO_KEY),
                word: untracked::AtomicPtr::new(null_mut()),
            }
        }
    }

    /// Takes the first run of `shape` in the remembered word, if this is a word of the pageblock
    /// that `hint` names and the last run had the same shape. Returns the number of its first frame.
    /// `last_change` is the same CPU's.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        hint: Hint,
        zone: Zone,
        shape: RunShape,
        last_change: &LastChange,
    ) -> Option<u64> {
        let word = self.word_for(key_of(hint, shape.to_bits()))?;
        word.get().take_likely_run_of(zone, shape, last_change)
    }

    /// Takes the lowest run of `shape` in the lasting bitmap of the pageblock that `hint` names,
    /// pageblock `bit` of its section, and remembers its word. Returns the number of its first frame.
    pub(crate) fn search(
        &self,
        hint: Hint,
        (bitmaps, bit): (&Bitmaps, usize),
        zone: Zone,
        shape: RunShape,
        last_change: &LastChange,
    ) -> Option<u64> {
        let key = key_of(hint, shape.to_bits());
        let from = self.word_for(key).map_or(0, |word| word.get().index());
        let (index, frame) = bitmaps.lasting(bit)?.take_run_of(from, zone, shape, last_change)?;
        if let Some(word) = bitmaps.lasting_word(bit, index) {
            self.remember(key, word);
        }
        Some(frame)
    }

    /// Returns the run of `shape` that begins at the remembered word, if this is a word of the
    /// pageblock that `hint` names, and the last run had the same shape: as [`LongRun::free_at`].
    #[inline(always)]
    pub(crate) fn free_long_run(
        &self,
        hint: Hint,
        zone: Zone,
        shape: LongShape,
    ) -> Option<LongRun> {
        let word = self.word_for(key_of(hint, shape.to_bits()))?;
        LongRun::free_at(word, zone, shape).ok()
    }

    /// Remembers the word of a long run, which a search has found in the pageblock that `hint` names.
    pub(crate) fn remember_long_run(&self, hint: Hint, shape: LongShape, run: LongRun) {
        self.remember(key_of(hint, shape.to_bits()), run.word());
    }

    /// Returns whether the remembered word, in which the last long run begins, probably has a mark. In a
    /// model, any word may have one.
    #[inline(always)]
    pub(crate) fn is_in_marked_word(&self) -> bool {
        #[cfg(not(loom))]
        {
            // Acquire: as in `word_for`.
            let word = self.word.load(Ordering::Acquire);
            // SAFETY: null, or a word of lasting bitmaps, which stay for as long as the instance exists.
            let word = unsafe { word.as_ref() };
            // To choose another word takes fewer instructions than to branch.
            word.unwrap_or(&NO_WORD).is_marked()
        }
        #[cfg(loom)]
        true
    }

    fn remember(&self, key: u64, word: WordPtr) {
        if !cfg!(loom) {
            // Release, here and in `note_freed`, pairs with the Acquire in `word_for`, by another CPU
            // that shares the record, which so sees the bitmap initialised.
            self.word.store(word.0, Ordering::Release);
            // Release: a CPU that sees the key also sees a word.
            self.key.store(key, Ordering::Release);
        }
    }

    /// Records that a run of `word`, a word of the CPU's hint for runs, was freed: from now on, it may
    /// be the lowest word with a run. If the remembered word is of another pageblock, the next
    /// search replaces it.
    #[inline(always)]
    pub(crate) fn note_freed(&self, word: WordPtr) {
        if word.0 < self.word.load(Ordering::Relaxed) {
            self.word.store(word.0, Ordering::Release);
        }
    }

    /// Returns the remembered word, if it was remembered with this key. In rare cases, it is a word of
    /// another pageblock or for another shape.
    #[inline(always)]
    fn word_for(&self, key: u64) -> Option<WordPtr> {
        // Acquire pairs with the Release of `remember`. The key is not `NO_KEY`, so a word was stored
        // before it, and none is null.
        let is_known = !cfg!(loom) && self.key.load(Ordering::Acquire) == key;
        is_known.then(|| WordPtr(self.word.load(Ordering::Acquire)))
    }
}

/// Returns the key for the runs of a shape in the pageblock that `hint` names. Two of them may have
/// the same key, because it leads only to a guess. It is not `NO_KEY`: the upper half of a shape is
/// not 0.
#[inline(always)]
fn key_of(hint: Hint, shape: u64) -> u64 {
    shape ^ (hint & mask(32))
}

/// The key of a CPU that has not allocated a run.
const NO_KEY: u64 = 0;

/// A word without a mark, in the place of that of a CPU that has not allocated a run.
#[cfg(not(loom))]
static NO_WORD: FrameWord = FrameWord::new();
