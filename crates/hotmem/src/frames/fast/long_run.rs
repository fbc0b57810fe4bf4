//! Allocates a run of 33 to 256 frames from the CPU's hint for runs: the fast path.

use super::frame_or_none::FrameOrNone;
use crate::addr::Pfn;
use crate::frames::Frames;
use crate::frames::cpu_record::Cpu;
use crate::geometry::BITMAP_WORD_BITS;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Grain, Hint, LongRun, LongShape, Zone};

impl<P: Platform> Frames<P> {
    /// Allocates the lowest run of `shape` in the pageblock that is this CPU's hint for runs, by one
    /// read-modify-write for each word of its bitmap: the fast path. Counts a hiding step, because it
    /// must put back what it has taken if another CPU takes a frame of the run meanwhile.
    #[inline(always)]
    pub(crate) fn alloc_long_run(&self, zone: Zone, shape: LongShape) -> Option<Pfn> {
        self.alloc_long_run_in(zone, shape).get()
    }

    #[inline(never)]
    fn alloc_long_run_in(&self, zone: Zone, shape: LongShape) -> FrameOrNone {
        let cpu = self.cpu_inlined();
        // Acquire pairs with the swap that set the hint.
        let hint = cpu.block(zone, Grain::Run).load(Ordering::Acquire);
        match cpu.last_run.free_long_run(hint, zone, shape) {
            Some(run) if cpu.is_listed() => self.take_long_run(cpu, zone, run),
            _ => self.search_long_run(cpu, hint, zone, shape),
        }
    }

    /// Allocates a run after an attempt at the word of the last run has failed: searches all words of
    /// the pageblock that `hint` names.
    #[inline(never)]
    fn search_long_run(&self, cpu: &Cpu, hint: Hint, zone: Zone, shape: LongShape) -> FrameOrNone {
        let Some((section, bit)) = self.words.hinted_words(hint) else { return FrameOrNone::NONE };
        match section.bitmaps.lowest_long_run(bit, zone, shape) {
            Some(run) if cpu.is_listed() => {
                cpu.last_run.remember_long_run(hint, shape, run);
                self.take_long_run(cpu, zone, run)
            }
            _ => FrameOrNone::NONE,
        }
    }

    #[inline(always)]
    fn take_long_run(&self, cpu: &Cpu, zone: Zone, run: LongRun) -> FrameOrNone {
        mutant!("an allocation of a long run counts no hiding step" => {
            return match run.take(zone) {
                Ok(()) => FrameOrNone::number(run.start()),
                Err(words) => {
                    cpu.start_hiding_step();
                    self.put_back_long_run(cpu, run.start(), words)
                }
            };
        });
        cpu.start_hiding_step();
        match run.take(zone) {
            Ok(()) => {
                cpu.end_hiding_step();
                FrameOrNone::number(run.start())
            }
            Err(words) => self.put_back_long_run(cpu, run.start(), words),
        }
    }

    /// Frees again the first `words` words of a run that begins at the frame with number `start`,
    /// which the caller has taken. Ends the hiding step that the caller has counted.
    #[cold]
    fn put_back_long_run(&self, cpu: &Cpu, start: u64, words: usize) -> FrameOrNone {
        let call = self.call_that_hides(cpu);
        mutant!("the first words of a long run that was not taken are not put back" => return FrameOrNone::NONE);
        if words > 0
            && let Some(start) = Pfn::new(start).or_record_violation()
            && let Some(block) = self.words.block_of(start).or_record_violation()
        {
            let first = block.offset_of(start);
            call.put_back(block, first..first + words * BITMAP_WORD_BITS);
        }
        FrameOrNone::NONE
    }
}
