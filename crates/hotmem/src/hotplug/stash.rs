//! Allocates memory for words, all of it before any is needed, so that no words are left half-made;
//! and frees it when nobody can read the words any more.

use super::Hotplug;
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::Frames;
use crate::geometry::FRAME_SIZE;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{MOST_FRAMES, Missing, Needed, NodeIndex, Piece, Supply, Words, frames_of};
use core::ptr::NonNull;

/// Runs of frames that are to hold pieces of the words. Dropping a stash frees the runs that have
/// not become pieces.
pub(super) struct Stash<'f, P: Platform> {
    frames: &'f Frames<P>,
    /// The last run of each length, as the number of its first frame + 1; the first bytes of a run
    /// name the run before it. 0: there is none.
    last: [u64; MOST_FRAMES],
}

impl<'f, P: Platform> Stash<'f, P> {
    /// Allocates the runs that `needed` names, or nothing.
    fn take(frames: &'f Frames<P>, needed: Needed) -> Option<Stash<'f, P>> {
        // Checked first, so that a refusal divides no pageblock.
        if !frames.may_have_for_words(needed.frames()) {
            return None;
        }
        let mut stash = Stash { frames, last: [0; MOST_FRAMES] };
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
        // SAFETY: so many frames are mapped there and were allocated for pieces.
        unsafe { piece.write_bytes(0, size_of::<T>()) };
        Some(piece.cast())
    }
}

impl<P: Platform> Drop for Stash<'_, P> {
    fn drop(&mut self) {
        for len in 1..=MOST_FRAMES {
            while let Some(run) = self.pop(len) {
                let run = PfnRange::with_len(run, len as u64).known().unwrap_or(PfnRange::EMPTY);
                self.frames.give_back_of_words(run);
            }
        }
    }
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Frees the words of withdrawn regions: 12 KiB for each 8 GiB whose words were all unused at a
    /// withdrawal, and 4 KiB for each 64 MiB there of which a pageblock was ever divided. Without
    /// this call, they are kept for later additions there. Returns how much it freed: nothing if a
    /// call was in the middle of a move at the last withdrawal; then the next call of this function
    /// frees it.
    ///
    /// Cost: O(chunks).
    ///
    /// # Safety
    /// Every call that uses this machine and began before the last [withdrawal](Self::withdraw), or
    /// before the last call of this function, has returned, on every CPU: every call of [`Frames`], and of all objects that it and the
    /// reporter have given out. No other CPU lists metadata meanwhile, as [`Frames::metadata`],
    /// [`Isolation::in_use`](crate::Isolation::in_use) and the reporter do.
    pub unsafe fn reclaim_words(&mut self) -> Bytes {
        let frames = self.frames;
        if !self.cursors_cleared {
            // The calls that could set a cursor to these words have returned. Others may have read
            // one before it is cleared.
            frames.clear_cursors();
            self.cursors_cleared = true;
            return Bytes::ZERO;
        }
        let freed = self.words().forget_retired(frames.direct_map()).map(|words| {
            // Allocated for words; by the caller's promise, nobody can read them any more.
            frames.free_filled(words).known();
            words.bytes().0
        });
        Bytes(freed.sum())
    }

    /// Makes the words that the sections of `range` lack, and those that the sections need to
    /// belong to `node`.
    ///
    /// # Errors
    /// Those of [`make_pieces`](Self::make_pieces).
    pub(super) fn make_words(&mut self, range: PfnRange, node: NodeIndex) -> Result<(), Bytes> {
        let needed = self.words().missing_for(core::iter::once((range, node)));
        self.make_pieces(needed, |words, stash| words.make(range, node, stash))
    }

    /// Makes pieces of the words, whose memory `needed` has counted.
    ///
    /// # Errors
    /// So much memory is needed, and neither the free kernel memory nor the word reserve suffices.
    /// The failed call changed nothing.
    pub(super) fn make_pieces<T>(
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
