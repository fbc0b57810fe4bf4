//! Allocates the memory for the engine's metadata of sections (the *words*), which is never freed. All
//! of the memory is allocated before any words are made, so that no words are left incomplete.

use super::Hotplug;
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::Frames;
use crate::geometry::FRAME_SIZE;
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::words::{
    FrameSource, MAX_PIECE_FRAMES, NeededRuns, NoMemory, NodeIndex, SectionWords, fill_with_zeroes,
};
use core::ptr::NonNull;

/// Allocated runs of frames that will hold pieces of the words. Dropping this frees the runs that
/// have not become pieces.
pub(super) struct ReservedRuns<'f, P: Platform> {
    frames: &'f Frames<P>,
    /// For each length, the head of a linked list of runs: the number of the first frame of a run +
    /// 1, or 0 if the list is empty. The first 8 bytes of a run are the link to the next run, in
    /// the same form.
    heads: [u64; MAX_PIECE_FRAMES],
}

impl<'f, P: Platform> ReservedRuns<'f, P> {
    /// Allocates the runs of `needed`, all of them or none.
    fn take(frames: &'f Frames<P>, needed: NeededRuns) -> Option<ReservedRuns<'f, P>> {
        // Check the amount of free memory first, so that a refused request does not divide a
        // pageblock.
        let call = frames.call();
        if !call.has_memory_for_words(needed.frames()) {
            return None;
        }
        let mut reserved_runs = ReservedRuns { frames, heads: [0; MAX_PIECE_FRAMES] };
        for (len, count) in needed.runs() {
            for _ in 0..count {
                reserved_runs.push(call.take_for_words(len as u64)?.start(), len);
            }
        }
        Some(reserved_runs)
    }

    /// Adds an allocated run to the list of its length.
    fn push(&mut self, run: Pfn, len: usize) {
        let next = core::mem::replace(&mut self.heads[len - 1], run.number() + 1);
        // SAFETY: the frames of `run` are allocated for `self`, so they are mapped and nobody else
        // uses them; a frame is aligned to 8 bytes.
        unsafe { self.frames.direct_map().pointer(run).cast::<u64>().write(next) };
    }

    fn pop(&mut self, len: usize) -> Option<Pfn> {
        let head = self.heads.get_mut(len.checked_sub(1)?)?;
        let run = Pfn::new(head.checked_sub(1)?)?;
        // SAFETY: `push` has written the link at the start of `run`, which `self` owns.
        *head = unsafe { self.frames.direct_map().pointer(run).cast::<u64>().read() };
        Some(run)
    }
}

impl<P: Platform> FrameSource for ReservedRuns<'_, P> {
    fn zeroed_frames(&mut self, frames: u64) -> Option<NonNull<u8>> {
        let run = self.pop(usize::try_from(frames).ok()?)?;
        let piece = NonNull::new(self.frames.direct_map().pointer(run))?;
        // SAFETY: `piece` points to `frames` frames that are mapped and that `self` owned.
        unsafe { fill_with_zeroes(piece, frames) };
        Some(piece)
    }
}

impl<P: Platform> Drop for ReservedRuns<'_, P> {
    fn drop(&mut self) {
        for len in 1..=MAX_PIECE_FRAMES {
            while let Some(run) = self.pop(len) {
                let run = PfnRange::with_len(run, len as u64)
                    .or_record_violation()
                    .unwrap_or(PfnRange::EMPTY);
                self.frames.call().free_word_memory(run);
            }
        }
    }
}

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Makes the missing words of the sections of `range`, and the missing pieces of the directory
    /// that assigning these sections to `node` needs.
    ///
    /// # Errors
    /// Those of [`allocate_word_memory`](Self::allocate_word_memory).
    pub(super) fn make_words(&mut self, range: PfnRange, node: NodeIndex) -> Result<(), Bytes> {
        let needed = self.words().runs_for_words(&mut core::iter::once((range, node)));
        self.allocate_word_memory(needed, &mut |words, reserved_runs| {
            words.make_words(range, node, reserved_runs)
        })
    }

    /// Allocates the memory `needed` for pieces of the words, and calls `make` to make the pieces.
    /// Frees the memory that `make` does not use, and refills the reserves.
    ///
    /// # Errors
    /// Returns the size of `needed` if neither the free kernel memory nor the word reserve is
    /// enough. The failed call changed nothing.
    pub(super) fn allocate_word_memory(
        &mut self,
        needed: NeededRuns,
        make: &mut dyn FnMut(&SectionWords, &mut &mut dyn FrameSource) -> Result<(), NoMemory>,
    ) -> Result<(), Bytes> {
        let needed_bytes = Bytes(needed.frames() * FRAME_SIZE);
        let mut reserved_runs = ReservedRuns::take(self.frames, needed).ok_or(needed_bytes)?;
        let mut source: &mut dyn FrameSource = &mut reserved_runs;
        let made = make(self.words(), &mut source).or_record_violation();
        drop(reserved_runs);
        self.frames.call().fill_reserves();
        made.ok_or(needed_bytes)
    }
}
