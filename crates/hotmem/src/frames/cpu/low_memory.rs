//! Makes low memory go last. A search takes low memory only if it has found nothing above, but then
//! the hints of its CPU lead to low memory, and the CPU's next allocations search no more. So code
//! that makes memory above low memory free clears all hints in low memory, and their CPUs search
//! again.
//!
//! Two steps can cross: a CPU sets a hint in low memory after a search that found nothing, and another
//! CPU frees memory above. The first sets the hint, marks that there is one, and looks again for free
//! memory above. The other makes its memory findable and then reads the mark. Between its two steps,
//! each passes a `SeqCst` fence, so at least one sees what the other has done, and clears the hint.
//!
//! Free memory above that suits no request, such as single frames for requests for runs, does not keep
//! a hint in low memory from being set. If frees join such frames to a run, CPUs find it when the
//! pageblocks of their hints are exhausted.

use crate::addr::{Pfn, PfnRange};
use crate::frames::order::SearchStep;
use crate::frames::{CallContext, Frames};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::sync::{Ordering, fence, mutant, sequential};
use crate::words::{Class, Grain, Hint, NO_HINT, SectionRef, Zone};

impl<P: Platform> Frames<P> {
    /// Returns the hint of the last pageblock in low memory, or `NO_HINT` (0). As a hint is the
    /// number of a pageblock plus one, this equals the number of pageblocks below the end of low
    /// memory, and greater hints are above low memory.
    pub(in crate::frames) fn last_low_hint(&self) -> Hint {
        // Relaxed: it is set before the Release store that announces the first region.
        self.last_low_hint.load(Ordering::Relaxed)
    }

    /// Returns whether a hint may lead to low memory. `SeqCst`: the caller has freed a frame, and a
    /// CPU that sets a hint in low memory looks for it afterwards.
    pub(in crate::frames) fn may_have_low_hint(&self) -> bool {
        sequential();
        self.has_low_hint.load(Ordering::SeqCst) != 0
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Returns the end of low memory, a multiple of a section; 0 if there is no low memory.
    pub(crate) fn low_end(&self) -> Pfn {
        Pfn::new(self.frames.last_low_hint() * PAGEBLOCK_FRAMES as u64).unwrap_or(Pfn::ZERO)
    }

    /// Sets the end of low memory. Boot only.
    pub(crate) fn set_low_end(&self, low_end: Pfn) {
        // The hint of a pageblock is its number plus one.
        let low_blocks = low_end.number() / PAGEBLOCK_FRAMES as u64;
        self.frames.last_low_hint.store(low_blocks, Ordering::Relaxed);
    }

    /// Records that a hint of this CPU leads to `section` from now on, if that is low memory. The
    /// hint is for allocations of `grain`; if that is `None`, for whole pageblocks.
    pub(super) fn note_hint_in(&self, section: SectionRef<'_>, zone: Zone, grain: Option<Grain>) {
        if zone == Zone::Kernel && section.start() < self.low_end() {
            self.note_low_hint(section, grain);
        }
    }

    #[cold]
    fn note_low_hint(&self, section: SectionRef<'_>, grain: Option<Grain>) {
        // A swap, not a store, so that this call sees what a call that clears the mark has seen.
        self.frames.has_low_hint.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst); // pairs with the fence in `note_free_memory_above`
        mutant!("a CPU that falls back to low memory does not look above again" => return);
        if self.has_free_above(section, grain) {
            self.clear_all_low_hints();
        }
    }

    /// Returns whether memory above low memory, on the node of `section`, is free and suits
    /// allocations of `grain`, or of pageblocks. Partly free pageblocks count only for single frames,
    /// because they may have no runs.
    fn has_free_above(&self, section: SectionRef<'_>, grain: Option<Grain>) -> bool {
        let (node, zone) = (section.node(self.words()), Zone::Kernel);
        let step = SearchStep { node, zone, from: self.low_end() };
        let has_any = |class: fn(Zone) -> Class| {
            let mut from = step.from;
            core::iter::from_fn(|| {
                let section = self.words().search(node, class(zone)).next_read_only(from)?;
                from = section.end();
                Some(section)
            })
            .any(|section| section.available(class(zone)) != 0)
        };
        let is_hidden = || {
            self.hinted_sections(zone).any(|section| {
                step.includes(self.words(), section) && section.available(Class::free(zone)) != 0
            })
        };
        let is_hidden_in_blocks = || {
            let mut blocks = self.blocks_of_hints_and_cursors(zone);
            blocks.any(|block| {
                step.includes(self.words(), block.section()) && self.has_takeable(block)
            })
        };
        has_any(Class::free)
            || is_hidden()
            || (grain == Some(Grain::Frame) && (has_any(Class::partial) || is_hidden_in_blocks()))
    }

    /// Clears all hints in low memory if `section` lies above it, because a search has something to
    /// find there again: the caller has made memory of the section findable.
    ///
    /// Cost: a load if there is no low memory; if there may be a hint in low memory, O(CPUs).
    pub(in crate::frames) fn note_free_memory_in(&self, section: SectionRef<'_>, zone: Zone) {
        if zone == Zone::Kernel && self.frames.last_low_hint() != NO_HINT {
            self.note_free_memory_above(section);
        }
    }

    #[cold]
    fn note_free_memory_above(&self, section: SectionRef<'_>) {
        fence(Ordering::SeqCst); // pairs with the fence in `note_low_hint`
        if self.frames.may_have_low_hint() && section.start() >= self.low_end() {
            self.clear_all_low_hints();
        }
    }

    #[cold]
    fn clear_all_low_hints(&self) {
        // `SeqCst`: if a CPU has set a hint in low memory that this call does not see, the CPU marks
        // that afterwards, and then sees the free memory for which this call clears the hints.
        let had_low_hint = self.frames.has_low_hint.swap(0, Ordering::SeqCst) != 0;
        mutant!("no free clears a hint in low memory" => return);
        if had_low_hint {
            self.forget_hints(PfnRange::ALL.split_at(self.low_end()).0);
        }
    }

    /// If a part of `range` lies above low memory, clears all hints in low memory, so that their
    /// CPUs search again. `range` has just come online.
    pub(crate) fn clear_low_memory_hints(&self, range: PfnRange) {
        let low_end = self.low_end();
        if low_end != Pfn::ZERO && low_end < range.end() {
            self.forget_hints(PfnRange::ALL.split_at(low_end).0);
        }
    }
}
