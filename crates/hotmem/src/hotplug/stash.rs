//! Memory for words: taken all at once before it is needed, so that nothing is left half-made, and
//! freed when nobody can look at them any more.

use super::Hotplug;
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::Frames;
use crate::geometry::FRAME_SIZE;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{MOST_FRAMES, Missing, Needed, NodeIndex, Piece, Supply, Words, frames_of};
use core::ptr::NonNull;

/// Runs of frames that are to hold pieces of the words. Those that do not become pieces are freed.
pub(super) struct Stash<'f, P: Platform> {
    frames: &'f Frames<P>,
    /// The last run of each length, as its first frame's number + 1; the first bytes of a run name
    /// the one before. 0: there is none.
    last: [u64; MOST_FRAMES],
}

impl<'f, P: Platform> Stash<'f, P> {
    /// Takes so many runs, or nothing.
    fn take(frames: &'f Frames<P>, needed: Needed) -> Option<Stash<'f, P>> {
        // What is refused divides no pageblock.
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

    /// Keeps a run that was allocated.
    fn push(&mut self, run: Pfn, len: usize) {
        let before = core::mem::replace(&mut self.last[len - 1], run.number() + 1);
        // SAFETY: allocated frames are mapped and ours, and frames are aligned.
        unsafe { self.frames.direct_map().pointer(run).cast::<u64>().write(before) };
    }

    fn pop(&mut self, len: usize) -> Option<Pfn> {
        let last = self.last.get_mut(len.checked_sub(1)?)?;
        let run = Pfn::new(last.checked_sub(1)?)?;
        // SAFETY: `push` has put it there.
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
    /// Frees the words of withdrawn memory, 12 KiB for each 8 GiB of which nothing is there any
    /// more. Without it they are kept for what comes there next. Returns how much that was.
    ///
    /// Cost: O(chunks).
    ///
    /// # Safety
    /// Every call that uses this machine and began before the last [withdrawal](Self::withdraw) has
    /// returned, on every CPU: of [`Frames`], and of what these and the reporter have given out.
    pub unsafe fn reclaim_words(&mut self) -> Bytes {
        let frames = self.frames;
        let freed = self.words().forget_retired(frames.direct_map()).map(|words| {
            // Allocated for words; nobody can look them up any more, by the caller's promise.
            frames.free_filled(words).known();
            words.bytes().0
        });
        Bytes(freed.sum())
    }

    /// Makes the words that the sections of `range` do not have, and what they need to be `node`'s.
    ///
    /// # Errors
    /// As of [`make_pieces`](Self::make_pieces).
    pub(super) fn make_words(&mut self, range: PfnRange, node: NodeIndex) -> Result<(), Bytes> {
        let needed = self.words().missing_for(core::iter::once((range, node)));
        self.make_pieces(needed, |words, stash| words.make(range, node, stash))
    }

    /// Makes pieces of the words, of which `needed` has counted the memory.
    ///
    /// # Errors
    /// There is not so much kernel memory free or kept for words. Nothing has changed.
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
