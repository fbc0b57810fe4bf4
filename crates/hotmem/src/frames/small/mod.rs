//! Allocates up to 256 frames: a run of bits of a divided pageblock's bitmap.
//!
//! One compare-exchange takes the bits of a word, if they are set and no flag of the word forbids
//! it. A run of more than 32 frames takes bits of several words, or none.

mod partial;
mod take;
mod without_runs;

use super::call::CallContext;
use super::order::{SearchStep, is_node_for};
use super::suitable::first_suitable_frame;
use super::{AllocError, AllocRequest, Frames, NodeChoice, Unit};
use crate::addr::{Pfn, PfnRange};
use crate::platform::Platform;
use crate::words::{Block, Class, Grain, Zone};

impl<P: Platform> Frames<P> {
    /// Allocates `request`, for which [`is_small`](AllocRequest::is_small) holds.
    pub(super) fn alloc_small(&self, request: &AllocRequest) -> Result<PfnRange, AllocError> {
        let mut first_frame = None;
        for &zone in request.zones() {
            let call = self.call();
            first_frame = match request.unrestricted_unit() {
                Some(Unit::Frame) => self.alloc_frame(zone),
                // `alloc_range` has tried the first zone.
                Some(Unit::Run(shape)) if zone != request.zones()[0] => self.alloc_run(zone, shape),
                Some(Unit::LongRun(shape)) if zone != request.zones()[0] => {
                    self.alloc_long_run(zone, shape)
                }
                _ => None,
            };
            if request.restricted {
                // Otherwise, a fast path has looked at this CPU's hint, and a search does so first.
                let hinted = call.hinted_block_for(zone, request);
                first_frame = hinted.and_then(|block| call.take(block, request)).or_else(|| {
                    call.node_block_for(zone, request).and_then(|block| call.take(block, request))
                });
            }
            if first_frame.is_some() || !call.looks_exhausted(zone) {
                break;
            }
        }
        let first_frame = first_frame.map_or_else(|| self.alloc_small_slowly(request), Ok)?;
        PfnRange::with_len(first_frame, request.frames).ok_or(AllocError::OutOfMemory)
    }

    #[cold]
    fn alloc_small_slowly(&self, request: &AllocRequest) -> Result<Pfn, AllocError> {
        self.search_all(request.zones(), |call| call.search_small(request, true))
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Returns the pageblock that is this CPU's hint, unless the request prefers another node.
    #[inline]
    fn hinted_block_for(&self, zone: Zone, request: &AllocRequest) -> Option<Block<'f>> {
        let suits_node = |block: &Block<'_>| match request.node {
            None => true,
            Some(NodeChoice::Avoiding(node)) => !block.is_on(self.words(), node),
            Some(NodeChoice::Near(node) | NodeChoice::Only(node)) => {
                is_node_for(self.words(), block.node(self.words()), node)
            }
        };
        self.this_cpus_block(zone, request.grain()).filter(suits_node)
    }

    /// Searches all memory, in an order that keeps the number of divided pageblocks small. Divides
    /// no pageblock if `may_divide` is false.
    pub(super) fn search_small(&self, request: &AllocRequest, may_divide: bool) -> Option<Pfn> {
        self.start_hiding();
        let grain = request.grain();
        self.search_steps(request).find_map(|step| {
            let hinted = self.hinted_block_in(step, grain);
            // CPUs that search at the same time begin at different sections, and each CPU tends to
            // find the pageblocks that it has divided itself.
            let start = match hinted {
                Some(block) if !request.restricted => block.section().start(),
                _ => step.from,
            };
            hinted
                .and_then(|block| self.take(block, request))
                .or_else(|| self.take_partial(step, start, request, Some(grain)))
                .or_else(|| self.take_frame_beside_runs(step, start, request))
                .or_else(|| if may_divide { self.split_for(step, request) } else { None })
                .or_else(|| self.take_where_cpus_allocate(step, request))
                .or_else(|| self.take_partial(step, start, request, None))
        })
    }

    /// Returns the pageblock that is this CPU's hint, if it belongs to `step`.
    pub(super) fn hinted_block_in(&self, step: SearchStep, grain: Grain) -> Option<Block<'f>> {
        let hinted = self.this_cpus_block(step.zone, grain);
        hinted.filter(|block| step.includes(self.words(), block.section()))
    }

    /// Allocates a single frame from a pageblock of either grain. For a run, this comes after a
    /// division: single frames need no run, but a run needs a pageblock with few single frames.
    fn take_frame_beside_runs(
        &self,
        step: SearchStep,
        start: Pfn,
        request: &AllocRequest,
    ) -> Option<Pfn> {
        match request.grain() {
            Grain::Frame => self.take_partial(step, start, request, None),
            Grain::Run => None,
        }
    }

    /// Allocates from a pageblock to which a hint or a cursor of any CPU leads.
    fn take_where_cpus_allocate(&self, step: SearchStep, request: &AllocRequest) -> Option<Pfn> {
        self.blocks_of_hints_and_cursors(step.zone)
            .filter(|block| step.includes(self.words(), block.section()))
            .find_map(|block| self.take(block, request))
    }

    /// Claims a free pageblock, divides it and allocates from it. The pageblock becomes this CPU's
    /// hint, unless the request is restricted.
    pub(super) fn split_for(&self, step: SearchStep, request: &AllocRequest) -> Option<Pfn> {
        self.start_hiding();
        let (block, zeroed) = self.claim_one(step, request)?;
        let first = first_suitable_frame(block, request).unwrap_or(0);
        block.set_grain(request.grain());
        #[allow(clippy::cast_possible_truncation, reason = "small")]
        let kept = first..first + request.frames as usize;
        self.divide(block, kept, zeroed.has_all(block.mask()));
        if request.restricted {
            self.set_partial_if_takeable(block);
            self.set_node_hint(block, step.zone, request);
        } else {
            self.set_block_hint(block, step.zone, request.grain());
        }
        block.start().checked_add(first as u64)
    }

    /// Returns whether the trees, the hints and the cursors lead to no free memory in this zone.
    /// Many machines have no movable memory, or none left; a movable request then continues with
    /// the next zone at once.
    ///
    /// Cost: one load per region if nothing is online in the zone. If memory is online but none is
    /// free, also a few loads per CPU, for its hints and cursors.
    pub(super) fn looks_exhausted(&self, zone: Zone) -> bool {
        if self.words().looks_empty(Class::online(zone)) {
            return true;
        }
        let free = Class::free(zone);
        self.words().looks_empty(free)
            && self.words().looks_empty(Class::partial(zone))
            && self.blocks_of_hints_and_cursors(zone).all(|block| !self.has_takeable(block))
            && self.hinted_sections(zone).all(|section| section.available(free) == 0)
    }
}
