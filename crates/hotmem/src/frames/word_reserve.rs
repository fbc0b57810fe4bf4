//! Frames that are kept for words, so that memory can be added when kernel memory has run out.
//!
//! A run of frames is kept for one piece of each kind: what an addition to a chunk takes where
//! nothing was before. Words come out of free kernel memory as long as there is some, and then out
//! of the reserve. It is filled at boot, after each addition out of free kernel memory, and out of
//! kernel memory that comes online, before anybody else can have that. Only the control path takes
//! from it and fills it.

use super::exhaustion::Moves;
use super::{AllocRequest, Frames, Metadata};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::{Ordering, settled::AtomicU64};
use crate::words::{ONE_OF_EACH, SectionRef, Zone};

/// The runs that are kept.
pub(super) struct WordReserve {
    /// The first frame of the run for each kind of piece, as its number + 1; 0: there is none.
    /// Relaxed, as all accesses: a number is all that there is.
    runs: [AtomicU64; ONE_OF_EACH.len()],
}

impl WordReserve {
    pub(super) const fn empty() -> WordReserve {
        WordReserve { runs: [const { AtomicU64::new(0) }; ONE_OF_EACH.len()] }
    }

    /// Lists the places for runs, each with the length of its run and the run, if it is there.
    fn places(&self) -> impl DoubleEndedIterator<Item = (&AtomicU64, u64, Option<PfnRange>)> {
        self.runs.iter().zip(ONE_OF_EACH).map(|(place, len)| {
            let start = place.load(Ordering::Relaxed).checked_sub(1).and_then(Pfn::new);
            (place, len, start.and_then(|start| PfnRange::with_len(start, len)))
        })
    }

    /// Lists the runs that are kept.
    fn kept(&self) -> impl Iterator<Item = PfnRange> {
        self.places().filter_map(|(_, _, run)| run)
    }

    /// Lists the places whose runs are missing, each with the length of its run.
    fn missing(&self) -> impl Iterator<Item = (&AtomicU64, u64)> {
        self.places().filter(|(_, _, run)| run.is_none()).map(|(place, len, _)| (place, len))
    }

    /// Takes a run out: the one that was put in last of those of its length.
    fn take(&self, len: u64) -> Option<PfnRange> {
        let (place, _, run) =
            self.places().rev().find(|(_, its_len, run)| *its_len == len && run.is_some())?;
        place.store(0, Ordering::Relaxed);
        run
    }

    /// Puts a run in, if one of its length is missing.
    fn put(&self, run: PfnRange) -> bool {
        let missing = self.missing().find(|&(_, len)| len == run.frames());
        missing.inspect(|(place, _)| keep(place, run.start())).is_some()
    }
}

fn keep(place: &AtomicU64, run: Pfn) {
    place.store(run.number() + 1, Ordering::Relaxed);
}

impl<P: Platform> Frames<P> {
    /// Lists what the reserve holds.
    pub(super) fn kept_for_words(&self) -> impl Iterator<Item = Metadata> {
        self.word_reserve.kept().map(|frames| Metadata { frames, describes: PfnRange::EMPTY })
    }

    /// Returns whether so many frames of kernel memory are free or in the reserve, in whatever pieces.
    pub(crate) fn may_have_for_words(&self, frames: u64) -> bool {
        let kept: u64 = self.word_reserve.kept().map(PfnRange::frames).sum();
        self.ensure_free(&[Zone::Kernel], frames.saturating_sub(kept)).is_ok()
    }

    /// Allocates a run of frames for words: from memory that is never removed as long as some is
    /// free there, then from other kernel memory, then from the reserve.
    pub(crate) fn take_for_words(&self, len: u64) -> Option<PfnRange> {
        self.allocate_for_words(len).or_else(|| self.word_reserve.take(len))
    }

    fn allocate_for_words(&self, len: u64) -> Option<PfnRange> {
        let request = AllocRequest::frames(len);
        self.alloc_range(request.fixed()).or_else(|_| self.alloc_range(request)).ok()
    }

    /// Takes back a run that was allocated for words and is not needed.
    pub(crate) fn give_back_of_words(&self, run: PfnRange) {
        if !self.word_reserve.put(run) {
            // Allocated by `take_for_words`.
            self.free_filled(run).known();
        }
    }

    /// Fills the reserve out of free kernel memory, as far as there is some.
    pub(crate) fn fill_word_reserve(&self) {
        for (place, len) in self.word_reserve.missing() {
            let Some(run) = self.allocate_for_words(len) else { break };
            keep(place, run.start());
        }
    }

    /// Fills the reserve out of frames of kernel memory that are the caller's, if it has enough of
    /// them; returns the rest.
    pub(crate) fn fill_word_reserve_from(&self, memory: PfnRange) -> PfnRange {
        let wanted = self.missing_in_reserve();
        if memory.frames() < wanted {
            return memory;
        }
        let mut rest = memory;
        for (place, len) in self.word_reserve.missing() {
            keep(place, rest.start());
            rest = rest.split_at(rest.start().checked_add(len).unwrap_or(rest.end())).1;
        }
        rest
    }

    /// Fills the reserve, if need be out of the lowest of `owned`: pageblocks of a section that are
    /// kernel memory and the caller's. Returns the others.
    pub(crate) fn fill_word_reserve_from_blocks(
        &self,
        section: SectionRef<'_>,
        owned: u64,
        moves: &mut Moves<'_>,
    ) -> u64 {
        self.fill_word_reserve();
        let wanted = self.missing_in_reserve();
        let lowest = section.block(owned.trailing_zeros() as usize);
        let Some(block) = lowest.filter(|_| wanted != 0) else { return owned };
        #[allow(clippy::cast_possible_truncation, reason = "less than a pageblock")]
        self.divide(&block, 0..wanted as usize, moves);
        self.fill_word_reserve_from(block.range());
        self.show_partial_if_any(&block);
        owned & !block.mask()
    }

    /// Counts the frames that the reserve lacks.
    fn missing_in_reserve(&self) -> u64 {
        self.word_reserve.missing().map(|(_, len)| len).sum()
    }
}

/// Frames of a full reserve: a part of a pageblock, with a frame of it for bitmaps.
pub(crate) const WORD_RESERVE: u64 = {
    let (mut kind, mut frames) = (0, 0);
    while kind < ONE_OF_EACH.len() {
        frames += ONE_OF_EACH[kind];
        kind += 1;
    }
    frames
};
const _: () = assert!(WORD_RESERVE + 1 < PAGEBLOCK_FRAMES as u64);
