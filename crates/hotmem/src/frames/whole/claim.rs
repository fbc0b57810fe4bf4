//! Claims one pageblock, and chooses the section of the pageblock.

use super::neighbourhood_set::NeighbourhoodSet;
use crate::addr::{Pfn, PfnRange};
use crate::frames::AllocRequest;
use crate::frames::CallContext;
use crate::frames::order::SearchStep;
use crate::frames::suitable::{ZoneAndNode, suits};
use crate::geometry::bits_of;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, Class, Search, SectionRef, Zeroed, Zone};

/// The number of sections in which a search looks for an unreported pageblock before it takes a
/// reported one.
const MAX_SECTIONS: usize = 8;

impl<'f, P: Platform> CallContext<'f, P> {
    /// Claims one free pageblock, and returns it and whether it is zero. Tries, in this order: a pageblock
    /// that is not reported; this CPU's section; the sections that the tree leads to; the sections of
    /// other CPUs; a hinted pageblock that is divided although all its frames are free.
    pub(in crate::frames) fn claim_one(
        &self,
        step: SearchStep,
        request: &AllocRequest,
    ) -> Option<(Block<'f>, Zeroed)> {
        self.claim_unreported(step, request)
            .or_else(|| {
                self.find_section(step, request, |section| {
                    self.claim_one_in(section, step.zone, request, true)
                })
            })
            .or_else(|| {
                let hinted = self.hinted_blocks(step.zone).find(|block| {
                    step.includes(self.words(), block.section())
                        && suits(self.words(), *block, request)
                        && self.take_if_all_free(*block)
                        && self.suits_or_put_back(
                            *block,
                            block.mask(),
                            Zeroed::NONE,
                            ZoneAndNode::new(step.zone, request),
                        )
                });
                hinted.map(|block| (block, Zeroed::NONE))
            })
    }

    /// If the reporter is switched on, claims a pageblock that is not reported: for a reported one,
    /// the host would have to provide RAM again. Tries this CPU's section, then the first sections
    /// that have unreported pageblocks and are not the hint of a CPU.
    fn claim_unreported(
        &self,
        step: SearchStep,
        request: &AllocRequest,
    ) -> Option<(Block<'f>, Zeroed)> {
        if !self.frames.wakeup().is_on() {
            return None;
        }
        let zone = step.zone;
        let current = self.this_cpus_section(zone);
        let suitable = current.filter(|&section| step.includes(self.words(), section));
        let claim = |section| self.claim_one_in(section, zone, request, false);
        suitable.and_then(claim).or_else(|| {
            let search = self.search(step, Class::unreported, request);
            let mut from = step.from;
            for _ in 0..MAX_SECTIONS {
                let section = search.next_read_only(from)?;
                from = section.end();
                if !self.is_hinted_section(zone, section, usize::MAX)
                    && let Some(claimed) = claim(section)
                {
                    if !request.restricted {
                        self.set_section_hint(section, zone);
                    }
                    return Some(claimed);
                }
            }
            None
        })
    }

    /// Claims the lowest free and unreported pageblock of a section. If there is none, and
    /// `allow_reported` returns true, claims the lowest free and reported one.
    pub(in crate::frames) fn claim_lowest(
        &self,
        section: SectionRef<'f>,
        zone: Zone,
        allow_reported: impl Fn() -> bool,
    ) -> Option<(Block<'f>, Zeroed)> {
        loop {
            let free = section.available(Class::free(zone));
            let unreported = free & !section.reported.load(Ordering::Relaxed);
            let candidates = if unreported != 0 || !allow_reported() { unreported } else { free };
            if candidates == 0 {
                return None;
            }
            let block = section.block(candidates.trailing_zeros() as usize)?;
            let anywhere = ZoneAndNode { zone, required_node: None };
            if let Some(zeroed) = self.claim_for(block, block.mask(), anywhere) {
                return Some((block, zeroed));
            }
        }
    }

    /// Claims all of `blocks`, in the section of `block`, or nothing. If it has claimed them, returns
    /// which of them are zero.
    pub(super) fn claim_for(
        &self,
        block: Block<'_>,
        blocks: u64,
        wanted: ZoneAndNode,
    ) -> Option<Zeroed> {
        let zeroed = self.claim_all(block.section(), blocks)?;
        self.suits_or_put_back(block, blocks, zeroed, wanted).then_some(zeroed)
    }

    /// Returns whether `blocks` of the section of `block` are still where the caller has found them.
    /// If not, publishes them again. The caller must have just claimed `blocks`, of which `zeroed` are
    /// zero.
    pub(in crate::frames) fn suits_or_put_back(
        &self,
        block: Block<'_>,
        blocks: u64,
        zeroed: Zeroed,
        wanted: ZoneAndNode,
    ) -> bool {
        mutant!("a claim does not look at the zone again" => return true);
        wanted.has(self.words(), block, blocks) || self.refuse(block, blocks, zeroed)
    }

    #[cold]
    fn refuse(&self, block: Block<'_>, blocks: u64, zeroed: Zeroed) -> bool {
        self.put_back_blocks(block.section(), blocks, zeroed);
        false
    }

    /// Claims a free pageblock of a section that suits the request. If `allow_reported` is false,
    /// claims only an unreported one.
    fn claim_one_in(
        &self,
        section: SectionRef<'f>,
        zone: Zone,
        request: &AllocRequest,
        allow_reported: bool,
    ) -> Option<(Block<'f>, Zeroed)> {
        if !request.restricted {
            return self.claim_lowest(section, zone, || allow_reported);
        }
        // A section of a hint may lie outside the bounds, and all of its pageblocks may be free.
        let bounds = PfnRange::new(request.lower_bound, request.upper_bound);
        let within_bounds = bounds.map_or(0, |bounds| section.mask_of(bounds));
        let free = section.available(Class::free(zone)) & within_bounds;
        let unreported = free & !section.reported.load(Ordering::Relaxed);
        let reported = if allow_reported { free & !unreported } else { 0 };
        let wanted = ZoneAndNode::new(zone, request);
        let mut candidates = bits_of(unreported).chain(bits_of(reported));
        candidates.find_map(|bit| {
            let block = section.block(bit).filter(|&block| suits(self.words(), block, request))?;
            Some((block, self.claim_for(block, block.mask(), wanted)?))
        })
    }

    /// Calls `claim` for each section that may have free pageblocks of the zone, until `claim`
    /// returns a value. If the tree has led to that section, the section becomes the CPU's hint,
    /// unless the request is restricted.
    pub(super) fn find_section<T>(
        &self,
        step: SearchStep,
        request: &AllocRequest,
        mut claim: impl FnMut(SectionRef<'f>) -> Option<T>,
    ) -> Option<T> {
        let mut claimed = None;
        self.find_section_until(step, request, &mut |section| {
            claimed = claim(section);
            claimed.is_some()
        });
        claimed
    }

    /// Does the same as [`find_section`](Self::find_section), until `claim` returns true. This is
    /// one function for all types of values, because it is long.
    fn find_section_until(
        &self,
        step: SearchStep,
        request: &AllocRequest,
        claim: &mut dyn FnMut(SectionRef<'f>) -> bool,
    ) {
        let zone = step.zone;
        let is_suitable = |section: &SectionRef<'_>| {
            step.includes(self.words(), *section)
                && (!request.boot_only || section.boot_blocks(self.words()) != 0)
        };
        if self.this_cpus_section(zone).filter(is_suitable).is_some_and(&mut *claim) {
            return;
        }
        let class = Class::free(zone);
        let search = self.search(step, Class::free, request);
        let start =
            if request.restricted { step.from } else { self.find_uncrowded_start(step, &search) };
        for section in search.all_round(step.from, start) {
            if section.available(class) == 0 {
                section.hide_if_empty(self.words(), class);
                continue;
            }
            if claim(section) {
                if !request.restricted {
                    self.set_section_hint(section, zone);
                }
                return;
            }
        }
        self.hinted_sections(zone).filter(is_suitable).any(claim);
    }

    /// Returns the frame at which this CPU begins its search for a section. If the neighbourhood of
    /// its present section has another suitable section, the search begins there. Otherwise, it
    /// begins in the lowest neighbourhood in which no other CPU works; only neighbourhoods of the
    /// lowest announced range with a suitable section are tried. Cost: a few loads for each
    /// neighbourhood that is tried, and a few for each CPU and each 1024 neighbourhoods.
    fn find_uncrowded_start(&self, step: SearchStep, search: &Search<'f>) -> Pfn {
        let SearchStep { zone, from, .. } = step;
        if let Some(current) = self.this_cpus_section(zone)
            && let neighbourhood = current.neighbourhood(self.words())
            && let Some(beside) = search.next(neighbourhood.start().max(from))
            && neighbourhood.contains(beside.start())
        {
            return beside.start();
        }
        let Some(lowest) = search.next(from) else { return from };
        // This includes the CPU's own section, whose neighbourhood has no other suitable section.
        let occupied_from =
            |first| NeighbourhoodSet::new(first, self.hinted_sections(zone).map(SectionRef::start));
        let mut occupied = occupied_from(lowest.neighbourhood(self.words()));
        let (within, mut next) = (lowest.announced(self.words()), Some(lowest));
        while let Some(section) = next.filter(|section| within.overlaps(section.range())) {
            let neighbourhood = section.neighbourhood(self.words());
            match occupied.has_cpu_at(neighbourhood.start()) {
                Some(false) => return section.start(),
                Some(true) => next = search.next(neighbourhood.end()),
                None => occupied = occupied_from(neighbourhood),
            }
        }
        from
    }
}
