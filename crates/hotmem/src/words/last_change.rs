//! Remembers which word a CPU changed last, and the value that the word had then, so that the next
//! change of the word need not read the word first.
//!
//! A read that follows a locked operation on the same word waits for that operation, and the next
//! locked operation waits for the read. A CPU mostly allocates and frees frames of one word, so
//! most changes would wait like this. The remembered value is only a guess: each change is a
//! compare-exchange, which fails if the word has another value. So only the speed depends on the
//! guess, and the accesses of this file order nothing.
//!
//! Loom does not see these accesses, so it would not try every order of them when two threads share
//! a CPU. In a model there are no guesses, and each change reads the word.

use super::word_bits::MARK;
use crate::sync::{Ordering, untracked};

/// The word that a CPU changed last, and the value that the word had then.
pub(crate) struct LastChange {
    /// The address of the word, or 0.
    word: untracked::AtomicUsize,
    value: untracked::AtomicU64,
}

impl LastChange {
    pub(crate) const fn new() -> LastChange {
        LastChange { word: untracked::AtomicUsize::new(0), value: untracked::AtomicU64::new(0) }
    }

    /// Returns the value that the word at address `word` probably has, if it is the word that the
    /// CPU changed last. Otherwise remembers `word` as the word changed last, and returns `None`:
    /// the caller must read the word, and record the value after its change with
    /// [`set_value`](Self::set_value).
    #[inline(always)]
    pub(super) fn guess_value(&self, word: usize) -> Option<u64> {
        if cfg!(loom) || self.word.load(Ordering::Relaxed) != word {
            self.set_word(word);
            return None;
        }
        Some(self.value.load(Ordering::Relaxed))
    }

    /// Makes the word at address `word` the word that the CPU changed last. The caller must record
    /// a value.
    #[inline(always)]
    pub(super) fn set_word(&self, word: usize) {
        self.word.store(word, Ordering::Relaxed);
    }

    /// Records the value that the word has.
    #[inline(always)]
    pub(super) fn set_value(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Returns whether the word that the CPU changed last probably has a mark. In a model, any word may
    /// have one.
    #[inline(always)]
    pub(crate) fn is_of_marked_word(&self) -> bool {
        cfg!(loom) || self.value.load(Ordering::Relaxed) & MARK != 0
    }

    /// Forgets the word, so that the next change reads its word.
    #[inline(always)]
    pub(super) fn clear(&self) {
        self.set_word(0);
    }
}
