//! Allocates the memory for words before any of it is used, so that words are never made in part;
//! and frees that memory when no code can read the words any more.

use super::Hotplug;
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::Frames;
use crate::geometry::FRAME_SIZE;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{MAX_PIECE_FRAMES, Missing, Needed, NodeIndex, Piece, Supply, Words, frames_of};
use core::ptr::NonNull;

/// Runs of frames that will hold pieces of the words. Dropping a stash frees the runs that have not
/// become pieces.
pub(super) struct Stash<'f, P: Platform> {
    frames: &'f Frames<P>,
    /// The last run of each length, as the number of its first frame + 1; 0 if there is none. The
    /// first bytes of a run hold the same number of the run before it.
    last: [u64; MAX_PIECE_FRAMES],
}

impl<'f, P: Platform> Stash<'f, P> {
    /// Allocates the runs of `needed`, all of them or none.
    fn take(frames: &'f Frames<P>, needed: Needed) -> Option<Stash<'f, P>> {
        // This is checked first, so that a refusal divides no pageblock.
        if !frames.may_have_for_words(needed.frames()) {
            return None;
        }
        let mut stash = Stash { frames, last: [0; MAX_PIECE_FRAMES] };
        for (len, count) in needed.runs() {
            for _ in 0..count {
                stash.push(frames.take_for_words(len as u64)?.start(), len);
            }
        }
        Some(stash)
    }

    /// Adds an allocated run to the stash.
    fn push(&mut self, run: Pfn, len: usize) {
        let before = core::mem::replace(&mut self.last[len - 1], run.number() + 1);
        // SAFETY: allocated frames are mapped and ours, and frames are aligned.
        unsafe { self.frames.direct_map().pointer(run).cast::<u64>().write(before) };
    }

    fn pop(&mut self, len: usize) -> Option<Pfn> {
        let last = self.last.get_mut(len.checked_sub(1)?)?;
        let run = Pfn::new(last.checked_sub(1)?)?;
        // SAFETY: `push` has written the value there.
        *last = unsafe { self.frames.direct_map().pointer(run).cast::<u64>().read() };
        Some(run)
    }
}

impl<P: Platform> Supply for Stash<'_, P> {
    fn piece<T: Piece>(&mut self) -> Option<NonNull<T>> {
        let run = self.pop(usize::try_from(frames_of::<T>()).ok()?)?;
        let piece = NonNull::new(self.frames.direct_map().pointer(run))?;
        // SAFETY: this many frames are mapped there and were allocated for pieces.
        unsafe { piece.write_bytes(0, size_of::<T>()) };
        Some(piece.cast())
    }
}

impl<P: Platform> Drop for Stash<'_, P> {
    fn drop(&mut self) {
        for len in 1..=MAX_PIECE_FRAMES {
            while let Some(run) = self.pop(len) {
                let run = PfnRange::with_len(run, len as u64).known().unwrap_or(PfnRange::EMPTY);
                self.frames.free_word_memory(run);
            }
        }
    }
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Frees the words of withdrawn regions: 12 KiB for each 8 GiB whose words were all unused at a
    /// withdrawal, and 4 KiB for each 64 MiB there of which a pageblock was ever divided. Without
    /// this call, they are kept for later additions there. Returns how much memory it freed. If a
    /// call was in the middle of a move at the last withdrawal, that is nothing, and the next call
    /// of this function frees the words.
    ///
    /// Cost: O(chunks).
    ///
    /// # Safety
    /// Every call that uses this machine and that began before the last
    /// [withdrawal](Self::withdraw), or before the last call of this function, has returned, on
    /// every CPU. These are all calls of [`Frames`], and of all objects that it and the reporter
    /// have given out. Meanwhile no other CPU lists metadata, as [`Frames::metadata`],
    /// [`Isolation::in_use`](crate::Isolation::in_use) and the reporter do.
    pub unsafe fn reclaim_words(&mut self) -> Bytes {
        let frames = self.frames;
        if !self.cursors_cleared {
            // The calls that could point a cursor to these words have returned. Other calls may
            // have read a cursor before it is cleared.
            frames.clear_cursors();
            self.cursors_cleared = true;
            return Bytes::ZERO;
        }
        let freed = self.words().forget_retired(frames.direct_map()).map(|words| {
            // These were allocated for words, and by the caller's promise no code can read them any
            // more.
            frames.free_filled(words).known();
            words.bytes().0
        });
        Bytes(freed.sum())
    }

    /// Makes the missing words of the sections of `range`, and the pieces that these sections need
    /// to belong to `node`.
    ///
    /// # Errors
    /// Those of [`allocate_word_memory`](Self::allocate_word_memory).
    pub(super) fn make_words(&mut self, range: PfnRange, node: NodeIndex) -> Result<(), Bytes> {
        let needed = self.words().missing_for(core::iter::once((range, node)));
        self.allocate_word_memory(needed, |words, stash| words.make_words(range, node, stash))
    }

    /// Makes pieces of the words, whose memory `needed` has counted.
    ///
    /// # Errors
    /// The error says how much memory is needed: neither the free kernel memory nor the word
    /// reserve is enough. The failed call changed nothing.
    pub(super) fn allocate_word_memory<T>(
        &mut self,
        needed: Needed,
        make: impl FnOnce(&'f Words, &mut Stash<'f, P>) -> Result<T, Missing>,
    ) -> Result<T, Bytes> {
        let missing = Bytes(needed.frames() * FRAME_SIZE);
        let mut stash = Stash::take(self.frames, needed).ok_or(missing)?;
        let made = make(self.words(), &mut stash).known();
        drop(stash);
        self.frames.fill_word_reserve();
        made.ok_or(missing)
    }
}
