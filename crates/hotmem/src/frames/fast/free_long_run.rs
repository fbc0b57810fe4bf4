//! Frees a run of 33 to 256 frames of the CPU's hint for runs: the fast path.
//!
//! Each word of the run but its last one has no free frame, so that a search may have read it
//! already, and must not be believed: the free counts a hiding step. As long as the pageblock is this
//! CPU's hint for runs, searches find the run, and the pageblock stays divided.

use super::free_frame::{FreeOutcome, bit_of};
use super::free_run::has_run_hint;
use crate::addr::Pfn;
use crate::frames::Frames;
use crate::frames::cpu_record::Cpu;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{FreedBits, Grain, LongRun, LongShape, WordPtr, hint_at};

impl<P: Platform> Frames<P> {
    /// Frees the run of `shape` that begins at `start`, if its pageblock is the CPU's hint for runs, by
    /// one read-modify-write for each word.
    #[inline(never)]
    pub(in crate::frames) fn free_long_run(&self, start: Pfn, shape: LongShape) -> FreeOutcome {
        let cpu = self.cpu_inlined();
        match cpu.last_freed.word_of(start) {
            Some(word) => self.free_long_run_at(cpu, start, word, shape),
            None => self.free_long_run_elsewhere(cpu, start, shape),
        }
    }

    /// Frees a run that the bitmaps in which the CPU last freed frames do not describe.
    #[inline(never)]
    fn free_long_run_elsewhere(&self, cpu: &Cpu, start: Pfn, shape: LongShape) -> FreeOutcome {
        let found = self.words.section_words_at(start);
        let word =
            found.and_then(|(section, block)| section.bitmaps.lasting_word(block, bit_of(start).0));
        let Some(word) = word else { return FreeOutcome::NotFreed };
        cpu.last_freed.point_to(word);
        self.free_long_run_at(cpu, start, word, shape)
    }

    #[inline(never)]
    fn free_long_run_at(
        &self,
        cpu: &Cpu,
        start: Pfn,
        word: WordPtr,
        shape: LongShape,
    ) -> FreeOutcome {
        // All words are read before one is written, so that a double free changes nothing.
        let Some((run, zone)) = LongRun::allocated_at(word, start, shape) else {
            return FreeOutcome::NotFreed;
        };
        // Relaxed: the hint is read again after the free.
        let hint = cpu.block(zone, Grain::Run).load(Ordering::Relaxed);
        if hint != hint_at(start) || !cpu.is_listed() {
            return FreeOutcome::NotFreed;
        }
        mutant!("a free of a long run counts no hiding step" => {
            let freed = run.free();
            if freed.is_ok() && has_run_hint(cpu, zone, start) {
                return FreeOutcome::Freed;
            }
            cpu.start_hiding_step();
            return self.finish_long_run(cpu, start, run, freed);
        });
        cpu.start_hiding_step();
        match run.free() {
            Ok(()) if has_run_hint(cpu, zone, start) && !self.may_have_low_hint() => {
                cpu.last_run.note_freed(run.word());
                cpu.end_hiding_step();
                FreeOutcome::Freed
            }
            freed => self.finish_long_run(cpu, start, run, freed),
        }
    }

    /// Completes the free of a run: frees the words that the caller has not freed, and makes all of
    /// them findable. `freed` is the result of [`LongRun::free`]. Ends the hiding step that the caller
    /// has counted. If another CPU frees the same run, returns `NotFreed`, and the general way finds
    /// frames of it free.
    #[cold]
    fn finish_long_run(
        &self,
        cpu: &Cpu,
        start: Pfn,
        run: LongRun,
        freed: Result<(), usize>,
    ) -> FreeOutcome {
        let call = self.call_that_hides(cpu);
        let block = self.words.block_of(start).or_record_violation();
        let lasting = block.and_then(|block| Some((block, block.lasting_bitmap()?)));
        let Some((block, bitmap)) = lasting.or_record_violation() else {
            return FreeOutcome::NotFreed;
        };
        block.set_grain(Grain::Run);
        for (index, (word, bits)) in run.words().enumerate() {
            if freed.map_or_else(|words| index < words, |()| true) {
                call.complete_bitmap_free(block, bitmap, word, FreedBits::into_exhausted(bits));
            } else if call.free_bits(block, bitmap, word, bits).is_none() {
                return FreeOutcome::NotFreed;
            }
        }
        FreeOutcome::Freed
    }
}
