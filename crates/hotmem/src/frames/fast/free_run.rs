//! Frees a run of up to 32 frames that lies in one word of a bitmap: the fast path.
//!
//! Usually, one compare-exchange sets the bits of the run. If the pageblock is this CPU's hint for
//! runs, the free is then complete: searches find the run, and the pageblock stays divided. If it is
//! another pageblock, a run that fills a word, or that others like it may follow, needs more steps.

use super::free_frame::{FreeOutcome, bit_of};
use crate::addr::Pfn;
use crate::frames::Frames;
use crate::frames::call::CallContext;
use crate::frames::cpu_record::Cpu;
use crate::geometry::{BITMAP_WORD_BITS, mask};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant, sequential};
use crate::words::{COMMON_RUN, FreedBits, Grain, WordPtr, Zone, hint_at};

impl<P: Platform> Frames<P> {
    /// Frees the run that begins at `start` and has as many frames as `run` has bits, the lowest
    /// ones, if one read-modify-write suffices. Makes no function call except tail calls, so that it
    /// need not save registers.
    #[inline(never)]
    pub(in crate::frames) fn free_run(&self, start: Pfn, run: u64) -> FreeOutcome {
        let bits = run << (start.number() % BITMAP_WORD_BITS as u64);
        if bits > mask(BITMAP_WORD_BITS) {
            return FreeOutcome::NotFreed;
        }
        let cpu = self.cpu_inlined();
        let planned = cpu.last_freed.plan_free(start, bits, &cpu.last_change);
        match planned.and_then(|(word, freed)| self.free_planned_run(cpu, start, word, freed)) {
            Some(outcome) => outcome,
            None => self.free_run_elsewhere(cpu, start, bits),
        }
    }

    /// Frees a run that the bitmaps in which the CPU last freed frames do not describe. Also if the
    /// guess of the word's value was wrong.
    #[inline(never)]
    fn free_run_elsewhere(&self, cpu: &Cpu, start: Pfn, bits: u64) -> FreeOutcome {
        let Some((section, block)) = self.words.section_words_at(start) else {
            return FreeOutcome::NotFreed;
        };
        let Some(word) = section.bitmaps.lasting_word(block, bit_of(start).0) else {
            return FreeOutcome::NotFreed;
        };
        let Some(freed) = word.plan_free(bits, &cpu.last_change) else {
            return FreeOutcome::NotFreed;
        };
        if !freed.is_of_open_word_in_group_of(start) {
            return FreeOutcome::NotFreed;
        }
        cpu.last_freed.point_to(word);
        self.free_planned_run(cpu, start, word, freed).unwrap_or(FreeOutcome::NotFreed)
    }

    /// Frees a run of an open word. Returns `None`, and changes nothing, if the word does not have the
    /// value that the plan is based on.
    #[inline(always)]
    fn free_planned_run(
        &self,
        cpu: &Cpu,
        start: Pfn,
        word: WordPtr,
        freed: FreedBits,
    ) -> Option<FreeOutcome> {
        if freed.was_exhausted() && !cpu.is_listed() {
            return Some(FreeOutcome::NotFreed);
        }
        if freed.was_exhausted() {
            return Some(self.free_run_into_exhausted(cpu, start, word, freed));
        }
        word.free(freed, &cpu.last_change).then(|| self.complete_run(cpu, start, word, freed))
    }

    /// Frees a run of a word that has no free frame. A search may have read the word already, and
    /// must not be believed. The CPU's record must be listed.
    #[inline(never)]
    fn free_run_into_exhausted(
        &self,
        cpu: &Cpu,
        start: Pfn,
        word: WordPtr,
        freed: FreedBits,
    ) -> FreeOutcome {
        mutant!("a free of a run into a word without free frames counts no hiding step" => {
            let is_freed = word.free(freed, &cpu.last_change);
            return if is_freed { self.complete_run(cpu, start, word, freed) } else { FreeOutcome::NotFreed };
        });
        cpu.start_hiding_step();
        if !word.free(freed, &cpu.last_change) {
            cpu.end_hiding_step();
            return FreeOutcome::NotFreed;
        }
        mutant!("a free of a run into the hint clears no hint in low memory" => {
            if has_run_hint(cpu, freed.zone(), start) {
                cpu.end_hiding_step();
                return FreeOutcome::Freed;
            }
        });
        if has_run_hint(cpu, freed.zone(), start) && !self.may_have_low_hint() {
            cpu.last_run.note_freed(word);
            cpu.end_hiding_step();
            FreeOutcome::Freed
        } else {
            self.finish_hidden_run(cpu, start, freed)
        }
    }

    /// Completes a free into a word that had no free frame. Ends the hiding step that the caller has
    /// counted.
    #[inline(never)]
    fn finish_hidden_run(&self, cpu: &Cpu, start: Pfn, freed: FreedBits) -> FreeOutcome {
        self.finish_run(self.call_that_hides(cpu), start, freed)
    }

    /// Completes a free into a word that had other free frames.
    #[inline(always)]
    fn complete_run(&self, cpu: &Cpu, start: Pfn, word: WordPtr, freed: FreedBits) -> FreeOutcome {
        if has_run_hint(cpu, freed.zone(), start) {
            cpu.last_run.note_freed(word);
            FreeOutcome::Freed
        } else if !freed.is_all_free() && !is_common(freed) {
            FreeOutcome::Freed
        } else {
            self.finish_run_of_another_block(start, freed)
        }
    }

    /// Completes a free into a pageblock that is not this CPU's hint for runs.
    #[inline(never)]
    fn finish_run_of_another_block(&self, start: Pfn, freed: FreedBits) -> FreeOutcome {
        self.finish_run(self.call(), start, freed)
    }

    /// Sets the grain of the pageblock of a freed run, makes the run findable if no frame of its word
    /// was free before, and publishes the pageblock if all its frames are free.
    #[inline(never)]
    fn finish_run(&self, call: CallContext<'_, P>, start: Pfn, freed: FreedBits) -> FreeOutcome {
        if let Some(block) = self.words.block_of(start).or_record_violation() {
            if is_common(freed) {
                block.set_grain(Grain::Run);
            }
            if (freed.was_exhausted() || freed.is_all_free())
                && let Some(bitmap) = block.lasting_bitmap().or_record_violation()
            {
                call.complete_bitmap_free(block, bitmap, bit_of(start).0, freed);
            }
        }
        FreeOutcome::Freed
    }
}

/// Returns whether the pageblock of a freed run is the CPU's hint for runs. `SeqCst`: code that
/// replaces the hint looks for free frames of the pageblock afterwards, so that at least one of the
/// two makes the run findable.
#[inline(always)]
pub(super) fn has_run_hint(cpu: &Cpu, zone: Zone, start: Pfn) -> bool {
    mutant!("a free of a run does not look at the hint" => return true);
    sequential();
    cpu.block(zone, Grain::Run).load(Ordering::SeqCst) == hint_at(start)
}

/// Returns whether a run is so long that its pageblock serves runs from now on: see
/// [`note_freed_run`](crate::words::Block::note_freed_run).
#[inline(always)]
fn is_common(freed: FreedBits) -> bool {
    // The bits of a run follow each other.
    freed.bits() & freed.bits() >> (COMMON_RUN - 1) != 0
}
