//! Allocates whole pageblocks, in any number: runs of bits in the `free` words of sections.
//!
//! Up to a section (128 MiB), an allocation is a run of bits in one word, claimed by one
//! compare-exchange. A longer one claims whole words, one after the other; if one fails, the
//! claimed ones are published again, so that nothing has changed. The frames of the last pageblock
//! that the request does not need are given back for small allocations.

use super::exhaustion::Moves;
use super::order::Place;
use super::small::{aligned_starts, is_where, runs_of, suits};
use super::{AllocError, AllocRequest, Frames};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{
    PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK, SECTION_PAGEBLOCKS, bits_of, mask,
};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, Class, Grain, NodeId, Search, SectionRef, Zone};
use core::iter::successors;

/// The number of sections that a search for unreported memory visits before the host has to provide
/// memory again for a reported pageblock.
const LOOKS: usize = 8;

/// A run of neighbouring pageblocks that the caller owns.
#[derive(Clone, Copy)]
struct Run<'a> {
    /// The section of the first pageblock, and the pageblock's bit in it.
    section: SectionRef<'a>,
    bit: usize,
    blocks: usize,
}

impl<'a> Run<'a> {
    /// Returns the number of sections that the run overlaps.
    fn sections(self) -> usize {
        (self.bit + self.blocks).div_ceil(SECTION_PAGEBLOCKS)
    }

    /// Returns, for each section of the run, its index in the run and its pageblocks in the run.
    fn words(self) -> impl Iterator<Item = (usize, u64)> {
        let (first, end) = (self.bit, self.bit + self.blocks);
        (0..self.sections()).map(move |i| {
            let from = first.saturating_sub(i * SECTION_PAGEBLOCKS).min(SECTION_PAGEBLOCKS);
            let to = (end - i * SECTION_PAGEBLOCKS).min(SECTION_PAGEBLOCKS);
            (i, mask(to) & !mask(from))
        })
    }

    /// Returns pageblock number `i` of the run.
    fn block(self, i: usize) -> Option<Block<'a>> {
        let at = self.bit + i;
        self.section.above(at / SECTION_PAGEBLOCKS)?.block(at % SECTION_PAGEBLOCKS)
    }
}

impl<P: Platform> Frames<P> {
    /// Allocates one whole pageblock from this CPU's section by one read-modify-write: the fast
    /// path. No memory is hidden meanwhile. While there is a reporter, it takes no reported
    /// pageblock: another section may have an unreported one.
    #[inline(never)]
    pub(super) fn alloc_pageblock(&self, zone: Zone) -> Option<Pfn> {
        let section = self.own_section(zone)?;
        let block = self.claim_lowest(section, zone, || !self.wakeup().is_on())?;
        self.hand_out(&block);
        Some(block.start())
    }

    /// Allocates `request`, which is too long for one word of a frame bitmap.
    pub(super) fn alloc_blocks(&self, request: &AllocRequest) -> Result<PfnRange, AllocError> {
        if request.len() == PAGEBLOCK_FRAMES as u64 && !request.is_picky() {
            for &zone in request.zones() {
                let own = self.alloc_pageblock(zone);
                if let Some(range) = own.and_then(|start| PfnRange::with_len(start, request.len()))
                {
                    return Ok(range);
                }
                if !self.looks_barren(zone) {
                    break;
                }
            }
        }
        self.search_all(request.zones(), |moves| {
            moves.start();
            self.places(request).find_map(|place| self.search_blocks(place, request, moves))
        })
    }

    fn search_blocks(
        &self,
        place: Place,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<PfnRange> {
        let blocks = usize::try_from(request.len().div_ceil(PAGEBLOCK_FRAMES as u64)).ok()?;
        let run = self.claim_run_of(place, request, blocks, moves).or_else(|| {
            // The missing pageblock may be a hint that stays divided although all its frames are
            // free.
            let more = blocks > 1 && self.coalesce_hinted(place, moves);
            if more { self.claim_run_of(place, request, blocks, moves) } else { None }
        })?;
        self.hand_out_run(run, request, moves)
    }

    fn claim_run_of(
        &self,
        place: Place,
        request: &AllocRequest,
        blocks: usize,
        moves: &mut Moves<'_>,
    ) -> Option<Run<'_>> {
        match blocks {
            1 => {
                let block = self.claim_one(place, request, moves)?;
                Some(Run { section: block.section, bit: block.bit(), blocks })
            }
            _ if blocks <= SECTION_PAGEBLOCKS => {
                self.find_section(place, request, moves, |section| {
                    self.claim_run(section, place.zone, request, blocks)
                })
            }
            _ => self.claim_sections(place, request, blocks, moves),
        }
    }

    /// Publishes the hinted pageblocks of `place` that stay divided although all their frames are
    /// free. Returns whether there was one.
    fn coalesce_hinted(&self, place: Place, moves: &mut Moves<'_>) -> bool {
        let wholly = self
            .hinted_blocks(place.zone)
            .filter(|block| block.zone() == place.zone && place.includes(block.section))
            .filter_map(|block| {
                let bitmap = self.bitmap_of(&block, moves)?;
                self.coalesce(&block, bitmap, moves).then_some(())
            });
        wholly.count() > 0
    }

    /// Claims one free pageblock. Tries, in this order: a pageblock that is not reported; this
    /// CPU's section; the sections that the tree leads to; the sections of other CPUs; a hinted
    /// pageblock that stays divided although all its frames are free.
    pub(super) fn claim_one(
        &self,
        place: Place,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<Block<'_>> {
        self.claim_held(place, request, moves)
            .or_else(|| {
                self.find_section(place, request, moves, |section| {
                    self.claim_one_in(section, place.zone, request, true)
                })
            })
            .or_else(|| {
                self.hinted_blocks(place.zone).find(|block| {
                    block.zone() == place.zone
                        && place.includes(block.section)
                        && suits(block, request)
                        && self.take_if_all_free(block, moves)
                        && self.is_for(block, block.mask(), place.zone, request.only_node())
                })
            })
    }

    /// Claims a pageblock that is not reported, while there is a reporter: for a reported one, the
    /// host would have to provide memory again. Tries this CPU's section, then the first sections
    /// that still have unreported pageblocks and are no CPU's hint.
    fn claim_held(
        &self,
        place: Place,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<Block<'_>> {
        if !self.wakeup().is_on() {
            return None;
        }
        let zone = place.zone;
        let own = self.own_section(zone);
        let near = own.filter(|&section| place.includes(section));
        let claim = |section| self.claim_one_in(section, zone, request, false);
        near.and_then(claim).or_else(|| {
            let search = self.search(place, Class::unreported, request);
            let sections = successors(search.peek(place.from), |last| search.peek(last.end()));
            let nobodys = |at: &SectionRef<'_>| self.hinted_sections(zone).all(|own| own != *at);
            sections.take(LOOKS).filter(nobodys).find_map(|section| {
                let block = claim(section)?;
                if !request.is_picky() {
                    self.adopt_section(section, zone, moves);
                }
                Some(block)
            })
        })
    }

    /// Claims the lowest free pageblock of a section that is not reported; if there is none and
    /// `any` returns true, the lowest reported one.
    #[inline]
    fn claim_lowest<'s>(
        &self,
        section: SectionRef<'s>,
        zone: Zone,
        any: impl Fn() -> bool,
    ) -> Option<Block<'s>> {
        loop {
            let free = section.available(Class::free(zone));
            let held = free & !section.reported.load(Ordering::Relaxed);
            let candidates = if held != 0 || !any() { held } else { free };
            if candidates == 0 {
                return None;
            }
            let block = section.block(candidates.trailing_zeros() as usize)?;
            if self.claim_for(&block, block.mask(), zone, None) {
                return Some(block);
            }
        }
    }

    /// Claims all of `blocks`, in the section of `at`, or nothing.
    #[inline]
    fn claim_for(&self, at: &Block<'_>, blocks: u64, zone: Zone, only_on: Option<NodeId>) -> bool {
        at.section.claim_all(blocks) && self.is_for(at, blocks, zone, only_on)
    }

    /// Returns whether `blocks`, in the section of `at`, are in `zone` and on the required node;
    /// publishes them again if not. The caller has just claimed them. Since it read their words,
    /// they may have gone offline and come online in another zone or on another node; then the
    /// effect is as if they had been allocated and freed again. A claimed pageblock changes neither
    /// its zone nor its node.
    #[inline]
    pub(super) fn is_for(
        &self,
        at: &Block<'_>,
        blocks: u64,
        zone: Zone,
        only_on: Option<NodeId>,
    ) -> bool {
        mutant!("a claim does not look at the zone again" => return true);
        let is_right = at.section.zone_mask(zone) & blocks == blocks && is_where(at, only_on);
        is_right || self.refuse(at, blocks)
    }

    #[cold]
    fn refuse(&self, at: &Block<'_>, blocks: u64) -> bool {
        self.show_free(at.section, blocks, &mut self.no_moves_yet());
        false
    }

    /// Claims a free pageblock of a section that suits the request; `any` is as for
    /// [`claim_lowest`](Self::claim_lowest).
    fn claim_one_in<'s>(
        &self,
        section: SectionRef<'s>,
        zone: Zone,
        request: &AllocRequest,
        any: bool,
    ) -> Option<Block<'s>> {
        if !request.is_picky() {
            return self.claim_lowest(section, zone, || any);
        }
        let free = section.available(Class::free(zone));
        let held = free & !section.reported.load(Ordering::Relaxed);
        let rest = if any { free & !held } else { 0 };
        bits_of(held).chain(bits_of(rest)).filter_map(|bit| section.block(bit)).find(|block| {
            suits(block, request) && self.claim_for(block, block.mask(), zone, request.only_node())
        })
    }

    /// Calls `claim` for each section that may have free pageblocks of the zone, until it has
    /// claimed something. A section that the tree led to then becomes the CPU's hint, unless the
    /// request is picky.
    fn find_section<'s, T>(
        &'s self,
        place: Place,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
        mut claim: impl FnMut(SectionRef<'s>) -> Option<T>,
    ) -> Option<T> {
        let zone = place.zone;
        let is_there = |section: &SectionRef<'_>| {
            place.includes(*section) && (!request.wants_fixed() || section.fixed() != 0)
        };
        if let Some(claimed) = self.own_section(zone).filter(is_there).and_then(&mut claim) {
            return Some(claimed);
        }
        let class = Class::free(zone);
        let search = self.search(place, Class::free, request);
        let start = if request.is_picky() { place.from } else { self.uncrowded(place, search) };
        let below = search.all_from(place.from).take_while(|section| section.start() < start);
        for section in search.all_from(start).chain(below) {
            if section.available(class) == 0 {
                section.hide_if_empty(class);
                continue;
            }
            if let Some(claimed) = claim(section) {
                if !request.is_picky() {
                    self.adopt_section(section, zone, moves);
                }
                return Some(claimed);
            }
        }
        self.hinted_sections(zone).filter(is_there).find_map(claim)
    }

    /// Returns the frame at which this CPU begins its search for a section: beside its own section,
    /// or else at the lowest neighbourhood in which no other CPU works. The neighbourhoods tried
    /// are those of the lowest announced range that has a section to offer.
    fn uncrowded<'s>(&'s self, place: Place, search: Search<'s>) -> Pfn {
        let Place { zone, from, .. } = place;
        let own = self.own_section(zone);
        if let Some(own) = own.map(SectionRef::neighbourhood)
            && let Some(beside) = search.next(own.start().max(from))
            && own.contains(beside.start())
        {
            return beside.start();
        }
        let Some(lowest) = search.next(from) else { return from };
        let (within, mut next) = (lowest.announced(), Some(lowest));
        while let Some(section) = next.filter(|section| within.overlaps(section.range())) {
            let here = section.neighbourhood();
            let mut others = self.hinted_sections(zone).filter(|&hinted| Some(hinted) != own);
            if !others.any(|other| here.contains(other.start())) {
                return section.start();
            }
            next = search.next(here.end());
        }
        from
    }

    /// Claims a run longer than a section: whole words, then the rest.
    fn claim_sections(
        &self,
        place: Place,
        request: &AllocRequest,
        blocks: usize,
        moves: &mut Moves<'_>,
    ) -> Option<Run<'_>> {
        let class = Class::free(place.zone);
        let search = self.search(place, Class::free, request);
        let mut from = place.from;
        while let Some(section) = self.next_section(place, search, from) {
            from = section.end();
            let run = Run { section, bit: 0, blocks };
            if section.start().checked_add(request.len()).is_none_or(|end| end > request.bound()) {
                break;
            }
            if let Some(past) = self.past_region_without(section.start(), request.len()) {
                from = past;
                continue;
            }
            let free = |i| section.above(i).map_or(0, |section| allowed(section, class, request));
            if section.available(class) == 0 {
                section.hide_if_empty(class);
            }
            // The first word that is an obstacle, if any: no run can start at or below it.
            let obstacle = run.words().find(|&(i, wanted)| free(i) & wanted != wanted);
            match obstacle {
                Some((i, _)) => {
                    let past = (i as u64 + 1) * SECTION_FRAMES as u64;
                    from = section.start().checked_add(past).unwrap_or(Pfn::LIMIT);
                }
                None if section.start() < request.least() => {}
                None if !section.start().is_aligned(request.alignment()) => {}
                None if self.claim_words(run, place.zone, request, moves) => return Some(run),
                None => {}
            }
        }
        None
    }

    /// Returns where the search continues if these frames are not all in one region, as an
    /// allocation must be. If `start` lies in a region, no later start in that region has enough
    /// room either.
    fn past_region_without(&self, start: Pfn, frames: u64) -> Option<Pfn> {
        let section = start.checked_add(SECTION_FRAMES as u64).unwrap_or(Pfn::LIMIT);
        let Some(region) = self.words.announced_at(start) else { return Some(section) };
        let fits = start.checked_add(frames).is_some_and(|end| end <= region.range.end());
        if fits { None } else { Some(region.range.end().max(section)) }
    }

    /// Returns the first section at or above `from` that may have free pageblocks: the next section
    /// in the tree, or a section that is a CPU's hint and thus not in the tree.
    fn next_section<'s>(
        &'s self,
        place: Place,
        search: Search<'s>,
        from: Pfn,
    ) -> Option<SectionRef<'s>> {
        let hinted = self.hinted_sections(place.zone);
        let hinted = hinted.filter(|s| search.includes(*s) && s.start() >= from);
        hinted.chain(search.next(from)).min_by_key(|section| section.start())
    }

    /// Claims all of `run`, or nothing.
    fn claim_words(
        &self,
        run: Run<'_>,
        zone: Zone,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> bool {
        moves.start();
        for (i, wanted) in run.words() {
            let at = run.section.above(i).and_then(|section| section.block(0));
            if !at.is_some_and(|at| self.claim_for(&at, wanted, zone, request.only_node())) {
                for (claimed, blocks) in run.words().take_while(|&(claimed, _)| claimed < i) {
                    mutant!("a wide claim keeps its first word" => if claimed == 0 { continue });
                    if let Some(section) = run.section.above(claimed).known() {
                        self.show_free(section, blocks, moves);
                    }
                }
                return false;
            }
        }
        true
    }

    /// Allocates the first frames of `run`, which the caller owns, and frees the rest of its last
    /// pageblock.
    fn hand_out_run(
        &self,
        run: Run<'_>,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<PfnRange> {
        let at = |i: usize| run.block(i);
        let of_last = usize::try_from(request.len()).known()? - (run.blocks - 1) * PAGEBLOCK_FRAMES;
        let whole = if of_last < PAGEBLOCK_FRAMES { run.blocks - 1 } else { run.blocks };
        (0..whole).filter_map(|i| at(i).known()).for_each(|block| self.hand_out(&block));
        if whole < run.blocks
            && let Some(last) = at(whole).known()
        {
            last.set_grain(Grain::Frame);
            self.divide(&last, 0..of_last, moves);
            if request.is_picky() {
                self.show_partial_if_any(&last, moves);
            } else {
                self.adopt_block(&last, last.zone(), Grain::Frame, moves);
            }
        }
        PfnRange::with_len(at(0)?.start(), request.len()).known()
    }

    /// Claims the lowest suitable run of `blocks` pageblocks within a section; runs without
    /// reported pageblocks come first.
    fn claim_run<'s>(
        &self,
        section: SectionRef<'s>,
        zone: Zone,
        request: &AllocRequest,
        blocks: usize,
    ) -> Option<Run<'s>> {
        let first = section.block(0)?;
        let start = first.start();
        let align = usize::try_from(request.alignment() / PAGEBLOCK_FRAMES as u64).ok()?.max(1);
        let aligned = if align < SECTION_PAGEBLOCKS {
            aligned_starts(0, align)
        } else {
            u64::from(start.is_aligned(request.alignment()))
        };
        let room =
            request.bound().number().checked_sub(start.number())?.checked_sub(request.len())?;
        let last = usize::try_from(room / PAGEBLOCK_FRAMES as u64).unwrap_or(SECTION_PAGEBLOCKS);
        let below = request.least().number().saturating_sub(start.number());
        let least = usize::try_from(below.div_ceil(PAGEBLOCK_FRAMES as u64)).ok()?;
        let suitable = aligned & mask(last.saturating_add(1)) & !mask(least);
        let only_on = request.only_node();
        while is_where(&first, only_on) {
            let free = allowed(section, Class::free(zone), request) & SECTION_MASK;
            let held = free & !first.section.reported.load(Ordering::Relaxed);
            let starts = match section.runs_in_regions(held, blocks, runs_of) & suitable {
                0 => section.runs_in_regions(free, blocks, runs_of) & suitable,
                starts => starts,
            };
            if starts == 0 {
                return None;
            }
            let bit = starts.trailing_zeros() as usize;
            if self.claim_for(&first, mask(blocks) << bit, zone, only_on) {
                return Some(Run { section, bit, blocks });
            }
        }
        None
    }
}

/// Returns the available pageblocks of a class that a request may have: all, or only boot memory.
fn allowed(section: SectionRef<'_>, class: Class, request: &AllocRequest) -> u64 {
    let available = section.available(class);
    if request.wants_fixed() { available & section.fixed() } else { available }
}
