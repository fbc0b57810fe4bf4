//! Defines cursors. A cursor is a CPU's pointer to the word of a bitmap that its next frame comes
//! from.
//!
//! A word records its first frame and the zone of its frames, so that an allocation needs only this
//! pointer, and no look-up. The word may have changed its zone or gone offline since the cursor was
//! set. Then it refuses the allocation. Otherwise its free frames may be taken.
//!
//! **What a cursor hides.** The trees and hints need not lead to the free frames of the word that a
//! cursor points to: a search that has found no other frame looks at the cursors of all CPUs. So the
//! code that moves a cursor checks whether some frames of the previous word may be taken; if so, it
//! makes these frames findable (`CallContext::move_cursor`).
//!
//! **The memory of the word.** A cursor is pointed only to lasting bitmaps, which stay for as long as
//! the instance exists. So a cursor may lead to a word of memory that has gone offline since: the
//! word then has a flag, and an allocation takes no frame of it.

use super::Zone;
use super::bitmaps::WordPtr;
use super::frame_word::FrameWord;
use super::last_change::LastChange;
use crate::addr::Pfn;
use crate::sync::{AtomicPtr, Ordering, const_unless_loom, mutant, sequential};
use core::ptr::null_mut;

/// A CPU's cursor: a pointer to a word of lasting bitmaps, or null.
pub(crate) struct Cursor(AtomicPtr<FrameWord>);

impl Cursor {
    const_unless_loom! {
        pub(crate) fn new() -> Cursor {
            Cursor(AtomicPtr::new(null_mut()))
        }
    }

    /// Takes the first free frame of the word, if it is of `zone` and has no flags. Returns the
    /// frame's number. `last_change` is the record of the calling CPU.
    #[inline]
    pub(crate) fn take(&self, zone: Zone, last_change: &LastChange) -> Option<u64> {
        self.word()?.take_frame_of(zone, last_change)
    }

    /// Returns whether [`take`](Self::take) would probably find a frame.
    #[inline]
    pub(crate) fn offers(&self, zone: Zone) -> bool {
        self.word().is_some_and(|word| word.offers_frame_of(zone))
    }

    /// Returns whether the cursor points to this word. The caller has freed frames of the word.
    /// `SeqCst`: either this load sees that the cursor was moved, or the code that moves it sees the
    /// freed frames, so that one of the two makes them findable.
    #[inline]
    pub(crate) fn points_to(&self, word: WordPtr) -> bool {
        sequential();
        self.0.load(Ordering::SeqCst) == word.0
    }

    /// Returns the first frame of the word that the cursor points to.
    pub(crate) fn word_start(&self) -> Option<Pfn> {
        self.word()?.start()
    }

    /// Points the cursor to another word, or to none. If some frames of the previous word may be
    /// taken, returns the first frame of the previous word: the caller must then make these frames
    /// findable.
    ///
    /// The caller must have counted a hiding step, so that a search that misses the free frames of the
    /// previous word for a moment knows that it must look again.
    ///
    /// `SeqCst`: Release pairs with the Acquire of [`take`](Self::take), which so sees the bitmaps
    /// initialised. A free sets the bits of its frames before it reads the cursor. So if it still found
    /// the cursor at the previous word, this call sees these bits.
    pub(crate) fn swap(&self, to: Option<WordPtr>) -> Option<Pfn> {
        let old = self.0.swap(to.map_or(null_mut(), |word| word.0), Ordering::SeqCst);
        mutant!("no look at the previous word of a cursor" => return None);
        // SAFETY: as in `word`: null, or a word of lasting bitmaps.
        let old = unsafe { old.as_ref() }?;
        if old.has_takeable() { old.start() } else { None }
    }

    #[inline]
    fn word(&self) -> Option<&FrameWord> {
        // Acquire pairs with the Release of `swap`, by another CPU.
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a word of lasting bitmaps, which stay for as long as the instance exists.
        unsafe { word.as_ref() }
    }
}
