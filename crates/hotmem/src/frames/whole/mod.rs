//! Allocates whole pageblocks, in any number: runs of bits in the `free` words of sections.
//!
//! Up to a section (128 MiB), an allocation is a run of bits in one word, claimed by one
//! compare-exchange. A longer allocation claims whole words, one after the other. If one of these
//! claims fails, it publishes the claimed pageblocks again. Frames of the last pageblock that the
//! request does not need become free for small allocations.

mod claim;
mod claim_runs;
mod neighbourhood_set;
mod stale;
mod unzeroed;

use super::call::CallContext;
use super::order::SearchStep;
use super::{AllocError, AllocRequest, Frames};
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::words::Grain;
use claim_runs::Run;

impl<P: Platform> Frames<P> {
    /// Allocates `request`, which is too long for one word of a frame bitmap. Also returns whether all
    /// of the frames are known to be zero.
    pub(super) fn alloc_blocks(
        &self,
        request: &AllocRequest,
    ) -> Result<(PfnRange, bool), AllocError> {
        if request.frames == PAGEBLOCK_FRAMES as u64 && !request.restricted {
            for &zone in request.zones() {
                if let Some((start, is_zero)) = self.alloc_pageblock(zone)
                    && let Some(range) = PfnRange::with_len(start, request.frames)
                {
                    return Ok((range, is_zero));
                }
                if !self.call().looks_exhausted(zone) {
                    break;
                }
            }
        }
        self.search_all(request.zones(), |call| {
            call.start_hiding();
            call.search_steps(request).find_map(|step| call.search_blocks(step, request))
        })
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    fn search_blocks(&self, step: SearchStep, request: &AllocRequest) -> Option<(PfnRange, bool)> {
        let blocks = usize::try_from(request.frames.div_ceil(PAGEBLOCK_FRAMES as u64)).ok()?;
        let run = self.claim_run_of(step, request, blocks).or_else(|| {
            // Publish hinted pageblocks that are divided although all their frames are free, and
            // try again: the run may need one of them.
            let more = blocks > 1 && self.coalesce_hinted(step);
            if more { self.claim_run_of(step, request, blocks) } else { None }
        })?;
        Some((self.hand_out_run(run, request)?, run.is_zero))
    }

    fn claim_run_of(
        &self,
        step: SearchStep,
        request: &AllocRequest,
        blocks: usize,
    ) -> Option<Run<'f>> {
        match blocks {
            1 => {
                let (block, zeroed) = self.claim_one(step, request)?;
                let is_zero = zeroed.has_all(block.mask());
                Some(Run { section: block.section(), first_bit: block.bit(), blocks, is_zero })
            }
            _ if blocks <= SECTION_PAGEBLOCKS => self.find_section(step, request, |section| {
                self.claim_run(section, step.zone, request, blocks)
            }),
            _ => self.claim_sections(step, request, blocks),
        }
    }

    /// Publishes the hinted pageblocks of `step` that are divided although all their frames are
    /// free. Returns whether there was one.
    fn coalesce_hinted(&self, step: SearchStep) -> bool {
        let coalesced = self
            .hinted_blocks(step.zone)
            .filter(|block| step.includes(self.words(), block.section()))
            .filter_map(|block| {
                let bitmap = self.bitmap_of(block)?;
                self.coalesce(block, bitmap).then_some(())
            });
        coalesced.count() > 0
    }

    /// Allocates the first frames of `run` for `request`, and frees the rest of the last pageblock.
    /// The caller owns `run`.
    fn hand_out_run(&self, run: Run<'_>, request: &AllocRequest) -> Option<PfnRange> {
        let block_of_run = |i: usize| run.block(self.words(), i);
        let frames_of_last = usize::try_from(request.frames).or_record_violation()?
            - (run.blocks - 1) * PAGEBLOCK_FRAMES;
        let whole_blocks =
            if frames_of_last < PAGEBLOCK_FRAMES { run.blocks - 1 } else { run.blocks };
        (0..whole_blocks)
            .filter_map(|i| block_of_run(i).or_record_violation())
            .for_each(|block| self.hand_out(block));
        if whole_blocks < run.blocks
            && let Some(last_block) = block_of_run(whole_blocks).or_record_violation()
        {
            last_block.set_grain(Grain::Frame);
            self.divide(last_block, 0..frames_of_last, run.is_zero);
            if request.restricted {
                self.set_partial_if_takeable(last_block);
            } else {
                self.set_block_hint(last_block, last_block.zone(), Grain::Frame);
            }
        }
        PfnRange::with_len(block_of_run(0)?.start(), request.frames).or_record_violation()
    }
}
