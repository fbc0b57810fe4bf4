//! Allocates frames for words, from free memory or from the word reserve, and fills the reserve.

use super::exhaustion::Moves;
use super::word_reserve::store_run;
use super::{AllocRequest, Frames, Metadata};
use crate::addr::PfnRange;
use crate::known::Known;
use crate::platform::Platform;
use crate::words::{SectionRef, Zone};

impl<P: Platform> Frames<P> {
    /// Lists the runs in the reserve.
    pub(super) fn reserve_metadata(&self) -> impl Iterator<Item = Metadata> {
        self.word_reserve
            .filled_runs()
            .map(|frames| Metadata { frames, describes: PfnRange::EMPTY })
    }

    /// Returns whether `frames` frames are in the reserve or free in kernel memory, in any number
    /// of runs.
    pub(crate) fn has_memory_for_words(&self, frames: u64) -> bool {
        let kept: u64 = self.word_reserve.filled_runs().map(PfnRange::frames).sum();
        self.ensure_free(&[Zone::Kernel], frames.saturating_sub(kept)).is_ok()
    }

    /// Allocates a run of frames for words: from boot memory, then from other kernel memory, then
    /// from the reserve.
    pub(crate) fn take_for_words(&self, len: u64) -> Option<PfnRange> {
        self.allocate_for_words(len).or_else(|| self.word_reserve.take(len))
    }

    fn allocate_for_words(&self, len: u64) -> Option<PfnRange> {
        let request = AllocRequest::frames(len);
        self.alloc_range(request.in_boot_memory()).or_else(|_| self.alloc_range(request)).ok()
    }

    /// Puts a run that was allocated for words into the reserve, if the reserve lacks such a run;
    /// otherwise, frees the run.
    pub(crate) fn free_word_memory(&self, run: PfnRange) {
        if !self.word_reserve.put(run) {
            // `take_for_words` has allocated the run, so freeing it cannot fail.
            self.free_filled(run).known();
        }
    }

    /// Fills the reserve from free kernel memory, as far as there is enough.
    pub(crate) fn fill_word_reserve(&self) {
        for (place, len) in self.word_reserve.missing() {
            let Some(run) = self.allocate_for_words(len) else { break };
            store_run(place, run.start());
        }
    }

    /// Fills the reserve from the start of `memory`, if `memory` is large enough. Returns the rest
    /// of `memory`. The caller owns `memory`, which is kernel memory.
    pub(crate) fn fill_word_reserve_from(&self, memory: PfnRange) -> PfnRange {
        let wanted = self.missing_reserve_frames();
        if memory.frames() < wanted {
            return memory;
        }
        let mut rest = memory;
        for (place, len) in self.word_reserve.missing() {
            store_run(place, rest.start());
            rest = rest.split_at(rest.start().checked_add(len).unwrap_or(rest.end())).1;
        }
        rest
    }

    /// Fills the reserve from free kernel memory and, if that is not enough, from the lowest
    /// pageblock of `owned`. Returns the pageblocks of `owned` that it has not used. The caller
    /// owns `owned`, which is kernel memory.
    pub(crate) fn fill_word_reserve_from_blocks(
        &self,
        section: SectionRef<'_>,
        owned: u64,
        moves: &mut Moves<'_>,
    ) -> u64 {
        self.fill_word_reserve();
        let wanted = self.missing_reserve_frames();
        let lowest = section.block(owned.trailing_zeros() as usize);
        let Some(block) = lowest.filter(|_| wanted != 0) else { return owned };
        #[allow(clippy::cast_possible_truncation, reason = "less than a pageblock")]
        self.divide(&block, 0..wanted as usize, moves);
        self.fill_word_reserve_from(block.range());
        self.show_partial_if_any(&block, moves);
        owned & !block.mask()
    }

    /// Counts the frames that the reserve lacks.
    fn missing_reserve_frames(&self) -> u64 {
        self.word_reserve.missing().map(|(_, len)| len).sum()
    }
}
