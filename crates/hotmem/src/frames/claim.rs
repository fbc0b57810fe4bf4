//! Claims one pageblock, and chooses the section of the pageblock.

use super::crowd::Crowd;
use super::exhaustion::Moves;
use super::order::Place;
use super::small::{is_on_required_node, suits};
use super::{AllocRequest, Frames};
use crate::addr::Pfn;
use crate::geometry::bits_of;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, Class, NodeId, Search, SectionRef, Zone};
use core::iter::successors;

/// The number of sections in which a search looks for an unreported pageblock before it takes a
/// reported one.
const MAX_SECTIONS: usize = 8;

impl<P: Platform> Frames<P> {
    /// Claims one free pageblock. Tries, in this order: a pageblock that is not reported; this
    /// CPU's section; the sections that the tree leads to; the sections of other CPUs; a hinted
    /// pageblock that is divided although all its frames are free.
    pub(super) fn claim_one(
        &self,
        place: Place,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<Block<'_>> {
        self.claim_unreported(place, request, moves)
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

    /// If the reporter is switched on, claims a pageblock that is not reported: for a reported one,
    /// the host would have to provide RAM again. Tries this CPU's section, then the first sections
    /// that have unreported pageblocks and are not the hint of a CPU.
    fn claim_unreported(
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
            sections.take(MAX_SECTIONS).filter(nobodys).find_map(|section| {
                let block = claim(section)?;
                if !request.is_restricted() {
                    self.adopt_section(section, zone, moves);
                }
                Some(block)
            })
        })
    }

    /// Claims the lowest free and unreported pageblock of a section. If there is none, and `any`
    /// returns true, claims the lowest free and reported one.
    #[inline]
    pub(super) fn claim_lowest<'s>(
        &self,
        section: SectionRef<'s>,
        zone: Zone,
        any: impl Fn() -> bool,
    ) -> Option<Block<'s>> {
        loop {
            let free = section.available(Class::free(zone));
            let unreported = free & !section.reported.load(Ordering::Relaxed);
            let candidates = if unreported != 0 || !any() { unreported } else { free };
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
    pub(super) fn claim_for(
        &self,
        at: &Block<'_>,
        blocks: u64,
        zone: Zone,
        only_on: Option<NodeId>,
    ) -> bool {
        at.section.claim_all(blocks) && self.is_for(at, blocks, zone, only_on)
    }

    /// Returns whether `blocks` of the section of `at` are in `zone` and on the required node. If
    /// not, publishes them again. The caller has just claimed `blocks`. Between its read of the
    /// words and the claim, the pageblocks may have gone offline and come online in another zone or
    /// on another node. A claimed pageblock changes neither its zone nor its node.
    #[inline]
    pub(super) fn is_for(
        &self,
        at: &Block<'_>,
        blocks: u64,
        zone: Zone,
        only_on: Option<NodeId>,
    ) -> bool {
        mutant!("a claim does not look at the zone again" => return true);
        let is_right =
            at.section.zone_mask(zone) & blocks == blocks && is_on_required_node(at, only_on);
        is_right || self.refuse(at, blocks)
    }

    #[cold]
    fn refuse(&self, at: &Block<'_>, blocks: u64) -> bool {
        self.show_free(at.section, blocks, &mut self.new_moves());
        false
    }

    /// Claims a free pageblock of a section that suits the request. If `any` is false, claims only
    /// an unreported one.
    fn claim_one_in<'s>(
        &self,
        section: SectionRef<'s>,
        zone: Zone,
        request: &AllocRequest,
        any: bool,
    ) -> Option<Block<'s>> {
        if !request.is_restricted() {
            return self.claim_lowest(section, zone, || any);
        }
        let free = section.available(Class::free(zone));
        let unreported = free & !section.reported.load(Ordering::Relaxed);
        let rest = if any { free & !unreported } else { 0 };
        bits_of(unreported).chain(bits_of(rest)).filter_map(|bit| section.block(bit)).find(
            |block| {
                suits(block, request)
                    && self.claim_for(block, block.mask(), zone, request.only_node())
            },
        )
    }

    /// Calls `claim` for each section that may have free pageblocks of the zone, until `claim`
    /// returns a value. If the tree has led to that section, the section becomes the CPU's hint,
    /// unless the request is restricted.
    pub(super) fn find_section<'s, T>(
        &'s self,
        place: Place,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
        mut claim: impl FnMut(SectionRef<'s>) -> Option<T>,
    ) -> Option<T> {
        let zone = place.zone;
        let is_suitable = |section: &SectionRef<'_>| {
            place.includes(*section) && (!request.needs_boot_memory() || section.boot_blocks() != 0)
        };
        if let Some(claimed) = self.own_section(zone).filter(is_suitable).and_then(&mut claim) {
            return Some(claimed);
        }
        let class = Class::free(zone);
        let search = self.search(place, Class::free, request);
        let start = if request.is_restricted() {
            place.from
        } else {
            self.find_uncrowded_start(place, search)
        };
        let below = search.all_from(place.from).take_while(|section| section.start() < start);
        for section in search.all_from(start).chain(below) {
            if section.available(class) == 0 {
                section.hide_if_empty(class);
                continue;
            }
            if let Some(claimed) = claim(section) {
                if !request.is_restricted() {
                    self.adopt_section(section, zone, moves);
                }
                return Some(claimed);
            }
        }
        self.hinted_sections(zone).filter(is_suitable).find_map(claim)
    }

    /// Returns the frame at which this CPU begins its search for a section. If the neighbourhood of
    /// its present section has another suitable section, the search begins there. Otherwise, it
    /// begins in the lowest neighbourhood in which no other CPU works; only neighbourhoods of the
    /// lowest announced range with a suitable section are tried. Cost: a few loads for each
    /// neighbourhood that is tried, and a few for each CPU and each 1024 neighbourhoods.
    fn find_uncrowded_start<'s>(&'s self, place: Place, search: Search<'s>) -> Pfn {
        let Place { zone, from, .. } = place;
        let own = self.own_section(zone);
        if let Some(own) = own.map(SectionRef::neighbourhood)
            && let Some(beside) = search.next(own.start().max(from))
            && own.contains(beside.start())
        {
            return beside.start();
        }
        let Some(lowest) = search.next(from) else { return from };
        let others = || self.hinted_sections(zone).filter(|&hinted| Some(hinted) != own);
        let crowd_from = |first| Crowd::new(first, others().map(SectionRef::start));
        let mut crowd = crowd_from(lowest.neighbourhood());
        let (within, mut next) = (lowest.announced(), Some(lowest));
        while let Some(section) = next.filter(|section| within.overlaps(section.range())) {
            let here = section.neighbourhood();
            match crowd.has_cpu_at(here.start()) {
                Some(false) => return section.start(),
                Some(true) => next = search.next(here.end()),
                None => crowd = crowd_from(here),
            }
        }
        from
    }
}
