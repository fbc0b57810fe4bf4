//! Allocates a run of free frames that may begin at any frame, by a search of all memory.
//!
//! The other allocations search only where a run of their length may begin, and their cost depends
//! on little. This search walks all pageblocks within the bounds, so it finds each free run,
//! whichever words, pageblocks and sections the run crosses.

use crate::addr::{Pfn, PfnRange};
use crate::frames::suitable::is_on_required_node;
use crate::frames::{AllocError, AllocRequest, CallContext, Frames};
use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS, PAGEBLOCK_FRAMES, mask};
use crate::platform::Platform;
use crate::words::{Block, SectionPart};

impl<P: Platform> Frames<P> {
    /// Takes the lowest free run that suits the request, wherever it begins; low memory last.
    pub(in crate::frames) fn alloc_run_anywhere(
        &self,
        request: &AllocRequest,
    ) -> Result<PfnRange, AllocError> {
        self.search_all(request.zones(), |call| {
            call.start_hiding();
            let low_end = call.low_end();
            let has_low = low_end != Pfn::ZERO && request.upper_bound == Pfn::LIMIT;
            let above = if has_low { call.take_free_run(request, low_end) } else { None };
            above.or_else(|| call.take_free_run(request, Pfn::ZERO))
        })
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Takes the lowest suitable run of free frames at or above `from`.
    fn take_free_run(&self, request: &AllocRequest, from: Pfn) -> Option<PfnRange> {
        let lowest = request.lower_bound.max(from);
        let bounds = PfnRange::new(lowest, request.upper_bound).filter(|b| !b.is_empty())?;
        self.words().announced().find_map(|region| {
            let mut run = FreeRun::empty(bounds.intersection(region.range).start());
            let part = bounds.intersection(region.range);
            self.words().section_parts(part).find_map(|SectionPart { section, blocks }| {
                section.blocks(blocks).find_map(|block| {
                    self.free_runs_of(block, request, &mut |free| {
                        run.add(free.intersection(part));
                        while let Some(range) = run.first_suitable(request) {
                            if let Ok((taken, _)) = self.frames.alloc_at(range.start(), request) {
                                return Some(taken);
                            }
                            // Another CPU has taken a frame of the range.
                            run.remove_first_of(range);
                        }
                        None
                    })
                })
            })
        })
    }

    /// Calls `visit` with the runs of free frames of a pageblock that suits the request, until it
    /// returns a value. A run ends at each word of the bitmap.
    fn free_runs_of(
        &self,
        block: Block<'_>,
        request: &AllocRequest,
        visit: &mut dyn FnMut(PfnRange) -> Option<PfnRange>,
    ) -> Option<PfnRange> {
        let is_suitable = request.zones().contains(&block.zone())
            && is_on_required_node(self.words(), block, request.only_node())
            && (!request.boot_only || block.is_boot(self.words()));
        if !is_suitable {
            return None;
        }
        if block.live_state().is_none() {
            return if block.is_free() { visit(block.range()) } else { None };
        }
        for word in 0..BITMAP_WORDS {
            let mut free =
                self.with_bitmap(block, |bitmap| bitmap.map_or(0, |b| b.takeable_in(word)));
            while free != 0 {
                let first = free.trailing_zeros() as usize;
                let len = (free >> first).trailing_ones() as usize;
                free &= !(mask(len) << first);
                let start = block.start().checked_add((word * BITMAP_WORD_BITS + first) as u64)?;
                let found = visit(PfnRange::with_len(start, len as u64)?);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}

/// Free frames that follow each other.
struct FreeRun(PfnRange);

impl FreeRun {
    fn empty(at: Pfn) -> FreeRun {
        FreeRun(PfnRange::with_len(at, 0).unwrap_or(PfnRange::EMPTY))
    }

    /// Adds free frames: to the run, if they follow it, or as the start of the next run.
    fn add(&mut self, free: PfnRange) {
        let start = if free.start() == self.0.end() { self.0.start() } else { free.start() };
        self.0 = PfnRange::new(start, free.end()).unwrap_or(free);
    }

    /// Removes the first frame of `range`, and the frames below it.
    fn remove_first_of(&mut self, range: PfnRange) {
        let start = range.start().checked_add(1).unwrap_or(Pfn::LIMIT);
        self.0 = self.0.split_at(start).1;
    }

    /// Returns the first frames of the run that suit the request.
    fn first_suitable(&self, request: &AllocRequest) -> Option<PfnRange> {
        let start = self.0.start().align_up(request.align);
        let range = PfnRange::with_len(start, request.frames)?;
        (range.end() <= self.0.end()).then_some(range)
    }
}

const _: () = assert!(PAGEBLOCK_FRAMES == BITMAP_WORDS * BITMAP_WORD_BITS);
