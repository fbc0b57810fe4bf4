//! Defines cursors: a CPU's pointer to the word of a bitmap that its next frame comes from.
//!
//! A word says which frames it has and of which zone they are. So an allocation, and a free of a
//! frame of the same pageblock, need nothing but this pointer, and no look-up. A pointer may be old:
//! then the word refuses, or it is still right.
//!
//! **The memory of the word.** A cursor is set only to lasting bitmaps, which stay until
//! `Hotplug::reclaim_words`. Whoever sets it owns a frame of that pageblock, or counts a move that it
//! began before it freed one. So once the pageblock is offline and no move is in flight, no such
//! store is to come. `Frames::clear_cursors` then clears all cursors, and calls that may have read
//! one before that are among those that the caller of `reclaim_words` waits for.

use super::Zone;
use super::bitmaps::Bitmaps;
use super::frame_word::{FrameWord, Given, NAMED_BYTES};
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, GROUP_FRAMES};
use crate::sync::{Ordering, settled};
use core::ptr::null_mut;

/// A pointer to a word of lasting bitmaps, or to none.
pub(crate) struct Cursor(settled::AtomicPtr<FrameWord>);

impl Cursor {
    pub(crate) const fn new() -> Cursor {
        Cursor(settled::AtomicPtr::new(null_mut()))
    }

    /// Takes the first free frame of the word, if it is of `zone` and has no flags. Returns the
    /// frame's number.
    #[inline]
    pub(crate) fn take(&self, zone: Zone) -> Option<u64> {
        // Acquire pairs with `set`, by another CPU.
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a word of bitmaps that stay as long as this call (see above).
        unsafe { word.as_ref() }?.take_one_of(zone)
    }

    /// Frees a frame of the pageblock that the word belongs to, if that needs no more than setting a
    /// bit. Returns `None`, and changes nothing, otherwise.
    #[inline]
    pub(crate) fn give(&self, frame: Pfn) -> Option<Given> {
        // Acquire: as in `take`.
        let word = self.0.load(Ordering::Acquire);
        if word.is_null() {
            return None;
        }
        #[allow(clippy::cast_possible_truncation, reason = "within the frame of bitmaps")]
        let at = (frame.number() % GROUP_FRAMES as u64) as usize / BITMAP_WORD_BITS;
        let place = at * size_of::<FrameWord>();
        // In a model, bitmaps are not aligned.
        let word =
            if cfg!(loom) { word } else { word.map_addr(|word| word & !(NAMED_BYTES - 1) | place) };
        // SAFETY: a word of the frame of bitmaps that the cursor points into, which stays as long as
        // this call (see above).
        unsafe { &*word }.give_one(frame)
    }

    /// Points the cursor to word `word` of pageblock `bit`, if its bitmap is a lasting one. The
    /// caller owns a frame of the pageblock, or has counted a move before it freed one.
    pub(crate) fn set(&self, bitmaps: &Bitmaps, bit: usize, word: usize) {
        // Release pairs with `take` and `give`: they see the bitmaps as they were installed.
        self.0.store(bitmaps.lasting_word(bit, word), Ordering::Release);
    }

    /// Returns whether it names something.
    #[cfg(loom)]
    pub(crate) fn is_set(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    /// Points the cursor to nothing.
    pub(crate) fn clear(&self) {
        // Relaxed: nothing is read by it.
        self.0.store(null_mut(), Ordering::Relaxed);
    }
}
