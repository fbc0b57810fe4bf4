//! Claims runs of neighbouring pageblocks: a run within a section by one compare-exchange, a longer
//! run word by word.

use crate::addr::Pfn;
use crate::frames::AllocRequest;
use crate::frames::CallContext;
use crate::frames::order::SearchStep;
use crate::frames::runs::{aligned_starts, runs_of};
use crate::frames::suitable::{ZoneAndNode, is_on_required_node};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK, SECTION_PAGEBLOCKS, mask};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, Class, Search, SectionRef, SectionWords, Zone};

/// A run of neighbouring pageblocks that the caller owns.
#[derive(Clone, Copy)]
pub(in crate::frames) struct Run<'a> {
    /// The section of the first pageblock, and the pageblock's bit in that section.
    pub(in crate::frames) section: SectionRef<'a>,
    pub(in crate::frames) first_bit: usize,
    pub(in crate::frames) blocks: usize,
    /// Whether all of it is known to be zero.
    pub(in crate::frames) is_zero: bool,
}

impl<'a> Run<'a> {
    /// Returns the number of sections that the run overlaps.
    fn sections(self) -> usize {
        (self.first_bit + self.blocks).div_ceil(SECTION_PAGEBLOCKS)
    }

    /// Returns, for each section of the run, the section's index in the run, and a mask of its
    /// pageblocks that belong to the run.
    fn words(self) -> impl Iterator<Item = (usize, u64)> {
        let (first, end) = (self.first_bit, self.first_bit + self.blocks);
        (0..self.sections()).map(move |i| {
            let from = first.saturating_sub(i * SECTION_PAGEBLOCKS).min(SECTION_PAGEBLOCKS);
            let to = (end - i * SECTION_PAGEBLOCKS).min(SECTION_PAGEBLOCKS);
            (i, mask(to) & !mask(from))
        })
    }

    /// Returns pageblock number `i` of the run.
    pub(crate) fn block(self, words: &'a SectionWords, i: usize) -> Option<Block<'a>> {
        let bit = self.first_bit + i;
        self.section.above(words, bit / SECTION_PAGEBLOCKS)?.block(bit % SECTION_PAGEBLOCKS)
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Claims the lowest suitable run of `blocks` pageblocks within a section. Prefers runs without
    /// reported pageblocks.
    pub(super) fn claim_run(
        &self,
        section: SectionRef<'f>,
        zone: Zone,
        request: &AllocRequest,
        blocks: usize,
    ) -> Option<Run<'f>> {
        let first = section.block(0)?;
        let start = first.start();
        let align = usize::try_from(request.align / PAGEBLOCK_FRAMES as u64).ok()?.max(1);
        let aligned = if align < SECTION_PAGEBLOCKS {
            aligned_starts(0, align)
        } else {
            u64::from(start.number().is_multiple_of(request.align))
        };
        let space = request
            .upper_bound
            .number()
            .checked_sub(start.number())?
            .checked_sub(request.frames)?;
        let last_block =
            usize::try_from(space / PAGEBLOCK_FRAMES as u64).unwrap_or(SECTION_PAGEBLOCKS);
        let frames_below_bound = request.lower_bound.number().saturating_sub(start.number());
        let first_block =
            usize::try_from(frames_below_bound.div_ceil(PAGEBLOCK_FRAMES as u64)).ok()?;
        let suitable = aligned & mask(last_block.saturating_add(1)) & !mask(first_block);
        let wanted = ZoneAndNode::new(zone, request);
        while is_on_required_node(self.words(), first, wanted.required_node) {
            let free =
                available_to(self.words(), section, Class::free(zone), request) & SECTION_MASK;
            let unreported = free & !first.section().reported.load(Ordering::Relaxed);
            let starts = match section.runs_in_regions(self.words(), unreported, blocks, runs_of)
                & suitable
            {
                0 => section.runs_in_regions(self.words(), free, blocks, runs_of) & suitable,
                starts => starts,
            };
            if starts == 0 {
                return None;
            }
            let bit = starts.trailing_zeros() as usize;
            let run = mask(blocks) << bit;
            if let Some(zeroed) = self.claim_for(first, run, wanted) {
                let is_zero = zeroed.has_all(run);
                return Some(Run { section, first_bit: bit, blocks, is_zero });
            }
        }
        None
    }

    /// Claims a run that is longer than a section and starts at a section.
    pub(super) fn claim_sections(
        &self,
        step: SearchStep,
        request: &AllocRequest,
        blocks: usize,
    ) -> Option<Run<'f>> {
        let class = Class::free(step.zone);
        let search = self.search(step, Class::free, request);
        let mut from = step.from;
        while let Some(section) = self.next_section(step, &search, from) {
            from = section.end();
            let run = Run { section, first_bit: 0, blocks, is_zero: false };
            if section
                .start()
                .checked_add(request.frames)
                .is_none_or(|end| end > request.upper_bound)
            {
                break;
            }
            if let Some(next_start) =
                self.skip_region_without_space(section.start(), request.frames)
            {
                from = next_start;
                continue;
            }
            let free = |i| {
                section
                    .above(self.words(), i)
                    .map_or(0, |section| available_to(self.words(), section, class, request))
            };
            if section.available(class) == 0 {
                section.hide_if_empty(self.words(), class);
            }
            // Find the first section whose pageblocks of the run are not all free. No run can start
            // at or below that section.
            let obstacle = run.words().find(|&(i, wanted)| free(i) & wanted != wanted);
            match obstacle {
                Some((i, _)) => {
                    let past = (i as u64 + 1) * SECTION_FRAMES as u64;
                    from = section.start().checked_add(past).unwrap_or(Pfn::LIMIT);
                }
                None if section.start() < request.lower_bound => {}
                None if !section.start().number().is_multiple_of(request.align) => {}
                None => {
                    if let Some(is_zero) = self.claim_words(run, step.zone, request) {
                        return Some(Run { is_zero, ..run });
                    }
                }
            }
        }
        None
    }

    /// Returns `None` if the frames from `start` lie in one region, as the frames of an allocation
    /// must. Otherwise, returns the frame at which the search continues. If `start` lies in a
    /// region, the search continues at the end of that region, because no later start in it has
    /// enough space either.
    fn skip_region_without_space(&self, start: Pfn, frames: u64) -> Option<Pfn> {
        let section = start.checked_add(SECTION_FRAMES as u64).unwrap_or(Pfn::LIMIT);
        let Some(region) = self.words().announced_at(start) else { return Some(section) };
        let fits = start.checked_add(frames).is_some_and(|end| end <= region.range.end());
        if fits { None } else { Some(region.range.end().max(section)) }
    }

    /// Returns the first section at or above `from` that may have free pageblocks: the next section
    /// in the tree, or a section that is a CPU's hint and thus not in the tree.
    fn next_section(
        &self,
        step: SearchStep,
        search: &Search<'f>,
        from: Pfn,
    ) -> Option<SectionRef<'f>> {
        let mut lowest = search.next(from);
        for hinted in self.hinted_sections(step.zone) {
            let start = hinted.start();
            if start >= from
                && lowest.is_none_or(|lowest| start < lowest.start())
                && search.includes(hinted)
            {
                lowest = Some(hinted);
            }
        }
        lowest
    }

    /// Claims all of `run`, or nothing. If it has claimed the run, returns whether all of it is zero.
    fn claim_words(&self, run: Run<'_>, zone: Zone, request: &AllocRequest) -> Option<bool> {
        self.start_hiding();
        let wanted = ZoneAndNode::new(zone, request);
        let section_at = |i| run.section.above(self.words(), i);
        for (i, blocks) in run.words() {
            let block = section_at(i).and_then(|section| section.block(0));
            let claimed = block.and_then(|block| {
                // Until all words are claimed, their marks stay in the sections.
                let zeroed = self.claim_for(block, blocks, wanted)?;
                mutant!("a failed wide claim forgets that pageblocks are zero" => return Some(()));
                block.section().mark_zeroed(zeroed);
                Some(())
            });
            if claimed.is_none() {
                for (claimed, blocks) in run.words().take_while(|&(claimed, _)| claimed < i) {
                    mutant!("a failed wide claim keeps its first word" => if claimed == 0 { continue });
                    if let Some(section) = section_at(claimed).or_record_violation() {
                        self.publish_blocks(section, blocks);
                    }
                }
                return None;
            }
        }
        mutant!("a wide claim keeps the marks that pageblocks are zero" => return Some(false));
        let is_zero = |(i, blocks): (usize, u64)| {
            let section = section_at(i).or_record_violation();
            section.is_some_and(|section| section.take_zeroed(blocks).has_all(blocks))
        };
        // Each word loses its marks, whatever the others have.
        Some(run.words().map(is_zero).fold(true, |all, word| all & word))
    }
}

/// Returns the pageblocks of a class that are available to a request: all of them, or only those of
/// boot memory.
fn available_to(
    words: &SectionWords,
    section: SectionRef<'_>,
    class: Class,
    request: &AllocRequest,
) -> u64 {
    let available = section.available(class);
    if request.boot_only { available & section.boot_blocks(words) } else { available }
}
