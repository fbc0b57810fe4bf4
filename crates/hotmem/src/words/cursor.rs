//! Defines cursors: a CPU's pointer to the word of a bitmap that its next frame comes from.
//!
//! A word says which frames it has and of which zone they are. So an allocation needs nothing but this
//! pointer, and no look-up. A pointer may be old: then the word refuses, or it is still right.
//!
//! **What a cursor hides.** Frames of the word that it names need no other path to them: a search
//! that found nothing else looks at the cursors of all CPUs. So whoever moves a cursor looks whether
//! some frames of the word that it named may be taken, and makes these findable
//! (`Frames::move_cursor`).
//!
//! **The memory of the word.** A cursor is moved only to lasting bitmaps, which stay until
//! `Hotplug::reclaim_words`. Whoever moves it owns a frame of that pageblock, or counts a move that
//! it began before it freed one. So once the pageblock is offline and no move is in flight, no
//! cursor will be moved there any more. `Frames::clear_cursors` then clears all cursors, and calls
//! that may have read one before that are among those that the caller of `reclaim_words` waits for.

use super::Zone;
use super::bitmaps::WordPtr;
use super::frame_word::FrameWord;
use crate::addr::Pfn;
use crate::sync::{AtomicPtr, Ordering, const_unless_loom, mutant, sequential};
use core::ptr::null_mut;

/// A pointer to a word of lasting bitmaps, or to none.
pub(crate) struct Cursor(AtomicPtr<FrameWord>);

impl Cursor {
    const_unless_loom! {
        pub(crate) fn new() -> Cursor {
            Cursor(AtomicPtr::new(null_mut()))
        }
    }

    /// Takes the first free frame of the word, if it is of `zone` and has no flags. Returns the
    /// frame's number.
    #[inline]
    pub(crate) fn take(&self, zone: Zone) -> Option<u64> {
        self.word()?.take_one_of(zone)
    }

    /// Returns whether [`take`](Self::take) would find a frame. A guess.
    #[inline]
    pub(crate) fn offers(&self, zone: Zone) -> bool {
        self.word().is_some_and(|word| word.offers_one_of(zone))
    }

    /// Returns whether it names this word. `SeqCst`: the caller has freed frames of the word; whoever
    /// moves the cursor looks at the word afterwards.
    #[inline]
    pub(crate) fn names(&self, word: WordPtr) -> bool {
        sequential();
        self.0.load(Ordering::SeqCst) == word.0
    }

    /// Returns the first frame of the word that it names.
    pub(crate) fn named(&self) -> Option<Pfn> {
        self.word()?.start()
    }

    /// Points the cursor to another word, or to none. Returns the first frame of the word that it
    /// named, if some frames of that may be taken: the caller makes them findable.
    ///
    /// The caller owns a frame of the new word's pageblock, or has counted a move before it freed
    /// one; and it has counted a move in any case, because of the old word.
    ///
    /// `SeqCst`: Release pairs with [`take`](Self::take), which sees the bitmaps as they were
    /// installed; and this call sees the frees that saw the old word named.
    pub(crate) fn swap(&self, to: Option<WordPtr>) -> Option<Pfn> {
        let old = self.0.swap(to.map_or(null_mut(), |word| word.0), Ordering::SeqCst);
        mutant!("no look at the word that a cursor leaves" => return None);
        // SAFETY: as in `word`.
        let old = unsafe { old.as_ref() }?;
        if old.offers_some() { old.start() } else { None }
    }

    /// Returns whether it names something.
    #[cfg(loom)]
    pub(crate) fn is_set(&self) -> bool {
        self.word().is_some()
    }

    #[inline]
    fn word(&self) -> Option<&FrameWord> {
        // Acquire pairs with the Release of `swap`, by another CPU.
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a word of bitmaps that stay as long as this call (see above).
        unsafe { word.as_ref() }
    }
}
