//! Allocates the memory for words, and frees it when no code can read the words any more. All of
//! the memory is allocated before any of the words are made, so that no words are left incomplete.

use super::Hotplug;
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::Frames;
use crate::geometry::FRAME_SIZE;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{MAX_PIECE_FRAMES, Missing, Needed, NodeIndex, Piece, Supply, Words, frames_of};
use core::ptr::NonNull;

/// Allocated runs of frames that will hold pieces of the words. Dropping this frees the runs that
/// have not become pieces.
pub(super) struct ReservedRuns<'f, P: Platform> {
    frames: &'f Frames<P>,
    /// For each length, the head of a linked list of runs: the number of the first frame of a run +
    /// 1, or 0 if the list is empty. The first 8 bytes of a run are the link to the next run, in
    /// the same form.
    last: [u64; MAX_PIECE_FRAMES],
}

impl<'f, P: Platform> ReservedRuns<'f, P> {
    /// Allocates the runs of `needed`, all of them or none.
    fn take(frames: &'f Frames<P>, needed: Needed) -> Option<ReservedRuns<'f, P>> {
        // Check the amount of free memory first, so that a refused request does not divide a
        // pageblock.
        if !frames.has_memory_for_words(needed.frames()) {
            return None;
        }
        let mut reserved_runs = ReservedRuns { frames, last: [0; MAX_PIECE_FRAMES] };
        for (len, count) in needed.runs() {
            for _ in 0..count {
                reserved_runs.push(frames.take_for_words(len as u64)?.start(), len);
            }
        }
        Some(reserved_runs)
    }

    /// Adds an allocated run to the list of its length.
    fn push(&mut self, run: Pfn, len: usize) {
        let before = core::mem::replace(&mut self.last[len - 1], run.number() + 1);
        // SAFETY: the frames of `run` are allocated for `self`, so they are mapped and nobody else
        // uses them; a frame is aligned to 8 bytes.
        unsafe { self.frames.direct_map().pointer(run).cast::<u64>().write(before) };
    }

    fn pop(&mut self, len: usize) -> Option<Pfn> {
        let last = self.last.get_mut(len.checked_sub(1)?)?;
        let run = Pfn::new(last.checked_sub(1)?)?;
        // SAFETY: `push` has written the link at the start of `run`, which `self` owns.
        *last = unsafe { self.frames.direct_map().pointer(run).cast::<u64>().read() };
        Some(run)
    }
}

impl<P: Platform> Supply for ReservedRuns<'_, P> {
    fn piece<T: Piece>(&mut self) -> Option<NonNull<T>> {
        let run = self.pop(usize::try_from(frames_of::<T>()).ok()?)?;
        let piece = NonNull::new(self.frames.direct_map().pointer(run))?;
        // SAFETY: `piece` points to `frames_of::<T>()` frames that are mapped and that `self`
        // owned.
        unsafe { piece.write_bytes(0, size_of::<T>()) };
        Some(piece.cast())
    }
}

impl<P: Platform> Drop for ReservedRuns<'_, P> {
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
    /// withdrawal, and 4 KiB for each 64 MiB of these in which a pageblock was ever divided.
    /// Without this call, the words are kept for later additions in the same place. Returns how
    /// much memory this call has freed. If a move was in flight at the last withdrawal, this call
    /// frees nothing, and the next call frees the words.
    ///
    /// Cost: O(chunks).
    ///
    /// # Safety
    /// Every call that began before the last [withdrawal](Self::withdraw), or before the last call
    /// of this function, has returned on every CPU. This holds for all calls of [`Frames`] and of
    /// all objects that `Frames` and the reporter have returned. During this call, no other CPU
    /// lists metadata, as [`Frames::metadata`], [`Isolation::in_use`](crate::Isolation::in_use) and
    /// the reporter do.
    pub unsafe fn reclaim_words(&mut self) -> Bytes {
        let frames = self.frames;
        if !self.cursors_cleared {
            // Clear the cursors, but free nothing yet. The calls that could point a cursor to these
            // words have returned, but other calls may have read a cursor before it is cleared.
            frames.clear_cursors();
            self.cursors_cleared = true;
            return Bytes::ZERO;
        }
        let freed = self.words().forget_retired(frames.direct_map()).map(|words| {
            // These frames were allocated for words, and the caller promises that no code reads
            // them any more, so freeing them cannot fail.
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
        self.allocate_word_memory(needed, |words, reserved_runs| {
            words.make_words(range, node, reserved_runs)
        })
    }

    /// Allocates the memory `needed` for pieces of the words, and calls `make` to make the pieces.
    /// Frees the memory that `make` does not use, and refills the word reserve.
    ///
    /// # Errors
    /// Returns the size of `needed` if neither the free kernel memory nor the word reserve is
    /// enough. The failed call changed nothing.
    pub(super) fn allocate_word_memory<T>(
        &mut self,
        needed: Needed,
        make: impl FnOnce(&'f Words, &mut ReservedRuns<'f, P>) -> Result<T, Missing>,
    ) -> Result<T, Bytes> {
        let missing = Bytes(needed.frames() * FRAME_SIZE);
        let mut reserved_runs = ReservedRuns::take(self.frames, needed).ok_or(missing)?;
        let made = make(self.words(), &mut reserved_runs).known();
        drop(reserved_runs);
        self.frames.fill_word_reserve();
        made.ok_or(missing)
    }
}
