//! Defines cursors of nodes. A cursor of a node is a CPU's pointer to the word of a bitmap that its next
//! frame near the node comes from.
//!
//! Unlike a [`Cursor`](super::Cursor), it hides no memory from searches: it says only where to look
//! first. It leads to lasting bitmaps, which stay for as long as the instance exists.
//!
//! **The node of the word.** A CPU points the cursor to a word while it owns a frame of the word, so the
//! memory of the word is on the node then. It can go to another node only after it has gone offline, and
//! the code that takes it offline clears all cursors that lead there (`CallContext::forget_hints`). So a
//! CPU that has taken a frame, and finds the cursor unchanged afterwards, knows the node of the frame.

use super::Zone;
use super::bitmaps::WordPtr;
use super::frame_word::FrameWord;
use super::last_change::LastChange;
use crate::addr::Pfn;
use crate::sync::{AtomicPtr, Ordering, mutant};
use core::ptr::null_mut;

/// A CPU's cursor for frames near a node: a pointer to a word of lasting bitmaps, or null.
pub(crate) struct NodeCursor(AtomicPtr<FrameWord>);

/// A frame that was taken at a cursor of a node.
pub(crate) struct TakenNear {
    /// Its number.
    pub(crate) frame: u64,
    /// Whether the frame is certainly on the node. If not, the caller must free it again.
    pub(crate) is_on_node: bool,
}

impl NodeCursor {
    #[cfg(loom)]
    pub(crate) fn new() -> NodeCursor {
        NodeCursor(AtomicPtr::new(null_mut()))
    }

    /// Takes the first free frame of the word, if it is of `zone` and has no flags. `last_change` is the
    /// record of the calling CPU.
    #[inline]
    pub(crate) fn take(&self, zone: Zone, last_change: &LastChange) -> Option<TakenNear> {
        // Acquire pairs with the Release of `point_to`, by another CPU.
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a word of lasting bitmaps, which stay for as long as the instance exists.
        let frame = unsafe { word.as_ref() }?.take_frame_of(zone, last_change)?;
        mutant!("a cursor of a node is not read again after a take" => return Some(TakenNear { frame, is_on_node: true }));
        // Relaxed: the take was an Acquire. If the memory has been offline since the load above, the take
        // saw that it came online again, which was after `forget` had cleared the cursor.
        Some(TakenNear { frame, is_on_node: self.0.load(Ordering::Relaxed) == word })
    }

    /// Points the cursor to a word. The caller owns a frame of the word.
    pub(crate) fn point_to(&self, word: WordPtr) {
        // Release pairs with the Acquire of `take`, which so sees the bitmap initialised.
        self.0.store(word.0, Ordering::Release);
    }

    /// Clears the cursor if the first frame of its word is one for which `is_gone` holds. The caller has
    /// taken that memory offline, so no CPU points a cursor to it any more.
    pub(crate) fn forget(&self, is_gone: impl Fn(Pfn) -> bool) {
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: as in `take`.
        let start = unsafe { word.as_ref() }.and_then(FrameWord::start);
        mutant!("a cursor of a node is not cleared when its memory goes offline" => return);
        if start.is_some_and(is_gone) {
            // Relaxed: whoever brings the memory online again does so after this call. If another CPU has
            // changed the cursor since the load, its word is not in this memory.
            let _ = self.0.compare_exchange(word, null_mut(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
