//! Allocates frames for words, from free memory or from the word reserve, and fills the reserve.

use super::word_reserve::store_run;
use crate::addr::PfnRange;
use crate::frames::CallContext;
use crate::frames::{AllocRequest, Metadata};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::words::{SectionRef, Zone};

impl<'f, P: Platform> CallContext<'f, P> {
    /// Fills both reserves from free kernel memory and, if that is not enough, from the lowest
    /// pageblock of `owned`. Returns the pageblocks of `owned` that it has not used. The caller
    /// owns `owned`, which is kernel memory.
    pub(crate) fn fill_reserves_from_blocks(&self, section: SectionRef<'_>, owned: u64) -> u64 {
        self.fill_reserves();
        let missing_frames =
            self.missing_reserve_frames() + self.frames.table_reserve.count_missing();
        let lowest = section.block(owned.trailing_zeros() as usize);
        let Some(block) = lowest.filter(|_| missing_frames != 0) else { return owned };
        #[allow(clippy::cast_possible_truncation, reason = "less than a pageblock")]
        self.divide(block, 0..missing_frames as usize, false);
        let taken = PfnRange::with_len(block.range().start(), missing_frames).or_record_violation();
        let taken = taken.unwrap_or(PfnRange::EMPTY);
        self.note_metadata(taken);
        let rest = self.fill_word_reserve_from(taken);
        self.set_partial_if_takeable(block);
        // Frees what is left if an addition was dropped meanwhile and filled the table reserve.
        self.free_tables(rest);
        owned & !block.mask()
    }

    /// Lists the runs in the reserve.
    pub(in crate::frames) fn reserve_metadata(
        &self,
    ) -> impl Iterator<Item = Metadata> + use<'f, P> {
        self.frames
            .word_reserve
            .filled_runs()
            .map(|frames| Metadata { frames, describes: PfnRange::EMPTY })
    }

    /// Returns whether `frames` frames are in the reserve or free in kernel memory, in any number
    /// of runs.
    pub(crate) fn has_memory_for_words(&self, frames: u64) -> bool {
        let reserved_frames: u64 =
            self.frames.word_reserve.filled_runs().map(PfnRange::frames).sum();
        self.ensure_free(&[Zone::Kernel], frames.saturating_sub(reserved_frames)).is_ok()
    }

    /// Allocates a run of frames for words: from boot memory, then from other kernel memory, then
    /// from the reserve.
    pub(crate) fn take_for_words(&self, len: u64) -> Option<PfnRange> {
        self.allocate_for_words(len).or_else(|| self.frames.word_reserve.take(len))
    }

    fn allocate_for_words(&self, len: u64) -> Option<PfnRange> {
        let request = AllocRequest::frames(len);
        let in_boot_memory = self.frames.alloc_anywhere(request.in_boot_memory());
        let run = in_boot_memory.or_else(|_| self.frames.alloc_anywhere(request)).ok()?;
        self.note_metadata(run);
        Some(run)
    }

    /// Puts a run that was allocated for words into the reserve, if the reserve lacks such a run;
    /// otherwise, frees the run.
    pub(crate) fn free_word_memory(&self, run: PfnRange) {
        if !self.frames.word_reserve.store(run) {
            // `take_for_words` has allocated the run, so freeing it cannot fail.
            self.fill_and_free(run).or_record_violation();
        }
    }

    /// Fills the reserve from free kernel memory, as far as there is enough.
    fn fill_word_reserve(&self) {
        for (slot, len) in self.frames.word_reserve.empty_slots() {
            let Some(run) = self.allocate_for_words(len) else { break };
            store_run(slot, run.start());
        }
    }

    /// Fills the reserve from the start of `memory`, if `memory` is large enough. Returns the rest
    /// of `memory`. The caller owns `memory`, which is kernel memory.
    pub(crate) fn fill_word_reserve_from(&self, memory: PfnRange) -> PfnRange {
        let missing_frames = self.missing_reserve_frames();
        if memory.frames() < missing_frames {
            return memory;
        }
        let mut remaining = memory;
        for (slot, len) in self.frames.word_reserve.empty_slots() {
            store_run(slot, remaining.start());
            remaining =
                remaining.split_at(remaining.start().checked_add(len).unwrap_or(remaining.end())).1;
        }
        remaining
    }

    /// Fills the word reserve and the table reserve from free kernel memory, as far as there is
    /// enough.
    pub(crate) fn fill_reserves(&self) {
        self.fill_word_reserve();
        self.fill_table_reserve();
    }

    /// Replaces the runs of both reserves that lie in `range`, which is isolated, as far as other
    /// kernel memory is free, so that the reserves do not prevent the removal of `range`.
    pub(crate) fn move_reserves_out_of(&self, range: PfnRange) {
        for (slot, run) in self.frames.word_reserve.filled_slots() {
            if run.intersection(range).is_empty() {
                continue;
            }
            let Some(other) = self.allocate_for_words(run.frames()) else { break };
            store_run(slot, other.start());
            // The run was allocated for the reserve, so freeing it cannot fail.
            self.fill_and_free(run).or_record_violation();
        }
        self.move_table_reserve_out_of(range);
    }

    /// Counts the frames that the reserve lacks.
    fn missing_reserve_frames(&self) -> u64 {
        self.frames.word_reserve.empty_slots().map(|(_, len)| len).sum()
    }
}
