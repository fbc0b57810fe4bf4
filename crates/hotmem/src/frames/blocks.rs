//! Whole pageblocks, up to any length: bits of section words.
//!
//! Up to a section (128 MiB) is a run of bits in one word, one compare-exchange. More is whole
//! words one after the other, with exact undo: what was claimed is published again. What is left
//! of the last pageblock is given back for small allocations.

use super::order::Place;
use super::quiet::Moves;
use super::small::{aligned_starts, runs_of, suits};
use super::{AllocError, Block, Frames, Want};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_MASK, SECTION_PAGEBLOCKS, bits_of, mask};
use crate::known::Known;
use crate::platform::Platform;
use crate::region::{Class, Zone};
use crate::section::{ALL, Section};
use crate::sync::{Ordering, mutant};

/// Sections in which memory is looked for that is still here, before the host is asked for it.
const LOOKS: usize = 8;

/// Neighbouring pageblocks that the caller owns.
#[derive(Clone, Copy)]
struct Run {
    slot: usize,
    /// First section and first pageblock in it.
    index: usize,
    bit: usize,
    blocks: usize,
}

impl Run {
    /// The run as words: section and pageblocks in it.
    fn words(self) -> impl Iterator<Item = (usize, u64)> {
        let (first, end) = (self.bit, self.bit + self.blocks);
        (0..end.div_ceil(SECTION_PAGEBLOCKS)).map(move |i| {
            let from = first.saturating_sub(i * SECTION_PAGEBLOCKS).min(SECTION_PAGEBLOCKS);
            let to = (end - i * SECTION_PAGEBLOCKS).min(SECTION_PAGEBLOCKS);
            (self.index + i, mask(to) & !mask(from))
        })
    }
}

impl<P: Platform> Frames<P> {
    /// One whole pageblock, the fast way: from this CPU's section, by one read-modify-write, and
    /// nothing is ever hidden. If there the host has the memory of all that is free, it is worth
    /// looking elsewhere.
    pub(super) fn alloc_pageblock(&self, zone: Zone) -> Option<Pfn> {
        let (slot, index) = self.own_section(zone)?;
        let block = self.claim_lowest(slot, index, zone, || !self.bell().is_on())?;
        self.hand_out(&block);
        Some(block.start())
    }

    /// Allocates `want`, which is too long for one word of a line.
    pub(super) fn alloc_blocks(&self, want: &Want) -> Result<PfnRange, AllocError> {
        if want.len() == PAGEBLOCK_FRAMES as u64 && !want.is_picky() {
            for &zone in want.zones() {
                let own = self.alloc_pageblock(zone);
                if let Some(range) = own.and_then(|start| PfnRange::with_len(start, want.len())) {
                    return Ok(range);
                }
                if !self.looks_barren(zone) {
                    break;
                }
            }
        }
        self.search_all(want.zones(), |moves| {
            moves.start();
            self.places(want).find_map(|place| self.search_blocks(place, want, moves))
        })
    }

    fn search_blocks(&self, place: Place, want: &Want, moves: &mut Moves<'_>) -> Option<PfnRange> {
        let blocks = usize::try_from(want.len().div_ceil(PAGEBLOCK_FRAMES as u64)).ok()?;
        let run = self.claim_run_of(place, want, blocks, moves).or_else(|| {
            // One that only stays split as somebody's hint may be what is missing.
            let more = blocks > 1 && self.coalesce_hinted(place, moves);
            if more { self.claim_run_of(place, want, blocks, moves) } else { None }
        })?;
        self.hand_out_run(run, want, moves)
    }

    fn claim_run_of(
        &self,
        place: Place,
        want: &Want,
        blocks: usize,
        moves: &mut Moves<'_>,
    ) -> Option<Run> {
        match blocks {
            1 => {
                let block = self.claim_one(place, want, moves)?;
                Some(Run { slot: block.slot, index: block.index, bit: block.bit, blocks })
            }
            _ if blocks <= SECTION_PAGEBLOCKS => {
                self.find_section(place, want, moves, |slot, index, _| {
                    self.claim_run(slot, index, place.zone, want, blocks)
                })
            }
            _ => self.claim_sections(place, want, blocks, moves),
        }
    }

    /// Publishes pageblocks that are wholly free but stay split as hints; says whether there were
    /// any.
    fn coalesce_hinted(&self, place: Place, moves: &mut Moves<'_>) -> bool {
        let wholly = self
            .hinted_blocks(place.zone)
            .filter(|block| block.zone() == place.zone && block.region.node() == place.node)
            .filter(|block| block.counter.own_from(ALL) == Some(false));
        wholly.map(|block| self.show_coalesced(&block, moves)).count() > 0
    }

    /// One wholly free pageblock: one whose memory is still here, else from this CPU's section, else
    /// from wherever the tree leads, else from other CPUs' sections, else one that only stays split
    /// as somebody's hint.
    pub(super) fn claim_one(
        &self,
        place: Place,
        want: &Want,
        moves: &mut Moves<'_>,
    ) -> Option<Block<'_>> {
        self.claim_held(place, want, moves)
            .or_else(|| {
                self.find_section(place, want, moves, |slot, index, _| {
                    self.claim_one_in(slot, index, place.zone, want, true)
                })
            })
            .or_else(|| {
                self.hinted_blocks(place.zone).find(|block| {
                    block.zone() == place.zone
                        && block.region.node() == place.node
                        && suits(block, want)
                        && block.counter.own_from(ALL) == Some(false)
                        && self.is_for(block, block.mask(), place.zone)
                })
            })
    }

    /// While free memory is reported, a pageblock that is not: the host would have to find memory
    /// again for a reported one. From this CPU's section, else from one of the first that the
    /// reporter is to look at and no CPU works in.
    fn claim_held(&self, place: Place, want: &Want, moves: &mut Moves<'_>) -> Option<Block<'_>> {
        if !self.bell().is_on() {
            return None;
        }
        let zone = place.zone;
        let own = self.own_section(zone);
        let near = own.filter(|&(slot, _)| self.slots()[slot].node() == place.node);
        let claim = |(slot, index)| self.claim_one_in(slot, index, zone, want, false);
        near.and_then(claim).or_else(|| {
            let sections = self.slots_of(place, want).flat_map(|slot| {
                let tree = self.slots()[slot].tree(Class::unreported(zone));
                core::iter::successors(tree.peek(0), move |&last| tree.peek(last + 1))
                    .map(move |index| (slot, index))
            });
            let nobodys = |&at: &(usize, usize)| self.hinted_sections(zone).all(|own| own != at);
            sections.take(LOOKS).filter(nobodys).find_map(|(slot, index)| {
                let block = claim((slot, index))?;
                if !want.is_picky() {
                    self.adopt_section(slot, index, zone, moves);
                }
                Some(block)
            })
        })
    }

    /// The lowest free pageblock of a section, one whose memory is still here first; `any`: another
    /// one will do as well.
    #[inline]
    fn claim_lowest(
        &self,
        slot: usize,
        index: usize,
        zone: Zone,
        any: impl Fn() -> bool,
    ) -> Option<Block<'_>> {
        let section = self.section(slot, index)?;
        loop {
            let free = section.available(Class::free(zone));
            let held = free & !section.reported.load(Ordering::Relaxed);
            let candidates = if held != 0 || !any() { held } else { free };
            if candidates == 0 {
                return None;
            }
            let block = self.block(slot, index, candidates.trailing_zeros() as usize)?;
            if self.claim_for(&block, block.mask(), zone) {
                return Some(block);
            }
        }
    }

    /// Claims exactly `blocks`, of the section that `at` lies in, or nothing.
    #[inline]
    fn claim_for(&self, at: &Block<'_>, blocks: u64, zone: Zone) -> bool {
        at.section.claim_all(blocks) && self.is_for(at, blocks, zone)
    }

    /// Whether `blocks`, of the section that `at` lies in, which the caller owns since a moment ago,
    /// are still of this zone. Since their words were read they may have gone offline and come back
    /// for something else; then it is as if they were allocated and freed again. What somebody owns
    /// stays in its zone.
    #[inline]
    pub(super) fn is_for(&self, at: &Block<'_>, blocks: u64, zone: Zone) -> bool {
        let right = at.section.zone_mask(zone) & blocks == blocks;
        right || mutant!("a claim does not look at the zone again") || self.refuse(at, blocks)
    }

    #[cold]
    fn refuse(&self, at: &Block<'_>, blocks: u64) -> bool {
        self.show_free(at.slot, at.index, blocks, &mut self.no_moves_yet());
        false
    }

    /// A free pageblock of a section that suits; `any`: as for [`claim_lowest`](Self::claim_lowest).
    fn claim_one_in(
        &self,
        slot: usize,
        index: usize,
        zone: Zone,
        want: &Want,
        any: bool,
    ) -> Option<Block<'_>> {
        if !want.is_picky() {
            return self.claim_lowest(slot, index, zone, || any);
        }
        let section = self.section(slot, index)?;
        let free = section.available(Class::free(zone));
        let held = free & !section.reported.load(Ordering::Relaxed);
        let rest = if any { free & !held } else { 0 };
        bits_of(held)
            .chain(bits_of(rest))
            .filter_map(|bit| self.block(slot, index, bit))
            .find(|block| suits(block, want) && self.claim_for(block, block.mask(), zone))
    }

    /// Asks `claim` of each section that may have free pageblocks of `zone`, until it has claimed
    /// something; that section becomes the CPU's hint.
    fn find_section<'s, T>(
        &'s self,
        place: Place,
        want: &Want,
        moves: &mut Moves<'_>,
        mut claim: impl FnMut(usize, usize, &'s Section) -> Option<T>,
    ) -> Option<T> {
        let zone = place.zone;
        let is_there = |&(slot, _): &(usize, usize)| {
            let region = &self.slots()[slot];
            region.node() == place.node && (!want.wants_fixed() || region.is_fixed())
        };
        let mut try_hinted =
            |(slot, index): (usize, usize)| claim(slot, index, self.slots()[slot].section(index)?);
        if let Some(claimed) = self.own_section(zone).filter(is_there).and_then(&mut try_hinted) {
            return Some(claimed);
        }
        let class = Class::free(zone);
        for slot in self.slots_of(place, want) {
            let region = &self.slots()[slot];
            let tree = region.tree(class);
            let start = if want.is_picky() { 0 } else { self.uncrowded(slot, zone) };
            let below = tree.all_from(0).take_while(|&index| index < start);
            for index in tree.all_from(start).chain(below) {
                let Some(section) = region.section(index).known() else { break };
                if section.available(class) == 0 {
                    tree.clear_leaf(index, || section.available(class) == 0);
                    continue;
                }
                if let Some(claimed) = try_hinted((slot, index)) {
                    if !want.is_picky() {
                        self.adopt_section(slot, index, zone, moves);
                    }
                    return Some(claimed);
                }
            }
        }
        self.hinted_sections(zone).filter(is_there).find_map(try_hinted)
    }

    /// Where this CPU looks for a section first: beside its own one, else at the lowest neighbourhood
    /// in which no other CPU works, if there is one.
    fn uncrowded(&self, slot: usize, zone: Zone) -> usize {
        let region = &self.slots()[slot];
        let tree = region.tree(Class::free(zone));
        let size = region.neighbourhood();
        let own = self.own_section(zone).filter(|&(s, _)| s == slot);
        if let Some((_, own)) = own
            && let Some(beside) = tree.next(own / size * size)
            && beside / size == own / size
        {
            return beside;
        }
        let mut from = 0;
        while let Some(index) = tree.next(from) {
            let mut others = self.hinted_sections(zone).filter(|&hinted| Some(hinted) != own);
            if !others.any(|(s, other)| s == slot && other / size == index / size) {
                return index;
            }
            from = (index / size + 1) * size;
        }
        0
    }

    /// More than a section: whole words, then the rest.
    fn claim_sections(
        &self,
        place: Place,
        want: &Want,
        blocks: usize,
        moves: &mut Moves<'_>,
    ) -> Option<Run> {
        let class = Class::free(place.zone);
        for slot in self.slots_of(place, want) {
            let region = &self.slots()[slot];
            let free = |index| region.section(index).map_or(0, |s| s.available(class));
            let mut from = 0;
            while let Some(index) = self.next_section(slot, place.zone, from) {
                from = index + 1;
                let run = Run { slot, index, bit: 0, blocks };
                let start = self.regions_start(slot, index).known()?;
                if index + blocks.div_ceil(SECTION_PAGEBLOCKS) > region.section_count()
                    || start.checked_add(want.len()).is_none_or(|end| end > want.bound())
                {
                    break;
                }
                if free(index) == 0 {
                    region.tree(class).clear_leaf(index, || free(index) == 0);
                }
                // The first word that stands in the way, if any: no run can start at or below it.
                let obstacle = run.words().find(|&(i, wanted)| free(i) & wanted != wanted);
                match obstacle {
                    Some((i, _)) => from = i + 1,
                    None if !start.is_aligned(want.alignment()) => {}
                    None if self.claim_words(run, place.zone, moves) => return Some(run),
                    None => {}
                }
            }
        }
        None
    }

    /// The first section at or above `from` that may have free pageblocks: the tree leads there, or
    /// it is some CPU's own and the tree passes it over.
    fn next_section(&self, slot: usize, zone: Zone, from: usize) -> Option<usize> {
        let in_tree = self.slots()[slot].tree(Class::free(zone)).next(from);
        let hinted = self.hinted_sections(zone).filter(|&(s, index)| s == slot && index >= from);
        hinted.map(|(_, index)| index).chain(in_tree).min()
    }

    /// Claims all of `run` or nothing.
    fn claim_words(&self, run: Run, zone: Zone, moves: &mut Moves<'_>) -> bool {
        moves.start();
        for (i, wanted) in run.words() {
            let at = self.block(run.slot, i, 0);
            if !at.is_some_and(|at| self.claim_for(&at, wanted, zone)) {
                let kept = usize::from(mutant!("a wide claim keeps its first word"));
                let claimed = run.words().take_while(|&(claimed, _)| claimed < i);
                for (claimed, blocks) in claimed.skip(kept) {
                    self.show_free(run.slot, claimed, blocks, moves);
                }
                return false;
            }
        }
        true
    }

    /// The caller owns `run`: hands its first frames out, and what is left of the last pageblock
    /// back.
    fn hand_out_run(&self, run: Run, want: &Want, moves: &mut Moves<'_>) -> Option<PfnRange> {
        let at = |i: usize| {
            let place = run.bit + i;
            self.block(run.slot, run.index + place / SECTION_PAGEBLOCKS, place % SECTION_PAGEBLOCKS)
        };
        let of_last = usize::try_from(want.len()).known()? - (run.blocks - 1) * PAGEBLOCK_FRAMES;
        let whole = if of_last < PAGEBLOCK_FRAMES { run.blocks - 1 } else { run.blocks };
        (0..whole).filter_map(|i| at(i).known()).for_each(|block| self.hand_out(&block));
        if whole < run.blocks
            && let Some(last) = at(whole).known()
        {
            self.divide(&last, 0..of_last, moves);
            if want.is_picky() {
                self.show_partial_if_any(&last);
            } else {
                self.adopt_block(&last, last.zone(), moves);
            }
        }
        PfnRange::with_len(at(0)?.start(), want.len()).known()
    }

    fn regions_start(&self, slot: usize, index: usize) -> Option<Pfn> {
        self.block(slot, index, 0).map(|block| block.start())
    }

    /// Claims the lowest suitable run of `blocks` pageblocks within a section, one whose memory is
    /// still here first.
    fn claim_run(
        &self,
        slot: usize,
        index: usize,
        zone: Zone,
        want: &Want,
        blocks: usize,
    ) -> Option<Run> {
        let first = self.block(slot, index, 0)?;
        let start = first.start();
        let align = usize::try_from(want.alignment() / PAGEBLOCK_FRAMES as u64).ok()?.max(1);
        let aligned = if align < SECTION_PAGEBLOCKS {
            aligned_starts(0, align)
        } else {
            u64::from(start.is_aligned(want.alignment()))
        };
        let room = want.bound().number().checked_sub(start.number())?.checked_sub(want.len())?;
        let last = usize::try_from(room / PAGEBLOCK_FRAMES as u64).unwrap_or(SECTION_PAGEBLOCKS);
        let suitable = aligned & mask(last.saturating_add(1));
        loop {
            let free = first.section.available(Class::free(zone)) & SECTION_MASK;
            let held = free & !first.section.reported.load(Ordering::Relaxed);
            let starts = match runs_of(held, blocks) & suitable {
                0 => runs_of(free, blocks) & suitable,
                starts => starts,
            };
            if starts == 0 {
                return None;
            }
            let bit = starts.trailing_zeros() as usize;
            if self.claim_for(&first, mask(blocks) << bit, zone) {
                return Some(Run { slot, index, bit, blocks });
            }
        }
    }
}
