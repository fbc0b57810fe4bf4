//! Allocates a run of up to 32 frames from the CPU's hint for runs: the fast path.

use super::frame_or_none::FrameOrNone;
use crate::addr::Pfn;
use crate::frames::Frames;
use crate::frames::cpu_record::Cpu;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Grain, Hint, RunShape, Zone};

impl<P: Platform> Frames<P> {
    /// Allocates the lowest run of `shape` in the pageblock that is this CPU's hint for runs, by one
    /// read-modify-write: the fast path. It hides no memory, because it takes all of the run or
    /// nothing.
    #[inline(always)]
    pub(in crate::frames) fn alloc_run(&self, zone: Zone, shape: RunShape) -> Option<Pfn> {
        match zone {
            Zone::Kernel => self.alloc_run_in::<{ Zone::Kernel as u8 }>(shape).get(),
            Zone::Movable => self.alloc_run_in::<{ Zone::Movable as u8 }>(shape).get(),
        }
    }

    #[inline(never)]
    fn alloc_run_in<const ZONE: u8>(&self, shape: RunShape) -> FrameOrNone {
        let zone = Zone::ALL[usize::from(ZONE)];
        let cpu = self.cpu_inlined();
        // Acquire pairs with the swap that set the hint.
        let hint = cpu.block(zone, Grain::Run).load(Ordering::Acquire);
        match cpu.last_run.take(hint, zone, shape, &cpu.last_change) {
            Some(frame) => FrameOrNone::number(frame),
            None => self.search_run(cpu, hint, zone, shape),
        }
    }

    /// Allocates a run after an attempt at the word of the last run has failed: searches all words of
    /// the pageblock that `hint` names.
    #[inline(never)]
    fn search_run(&self, cpu: &Cpu, hint: Hint, zone: Zone, shape: RunShape) -> FrameOrNone {
        let Some((section, bit)) = self.words.hinted_words(hint) else { return FrameOrNone::NONE };
        let bitmap = (&section.bitmaps, bit);
        match cpu.last_run.search(hint, bitmap, zone, shape, &cpu.last_change) {
            Some(frame) => FrameOrNone::number(frame),
            None => FrameOrNone::NONE,
        }
    }
}
