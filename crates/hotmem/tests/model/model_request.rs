//! Describes requests for frames, and computes whether the model could serve them.

use crate::lifecycle::NODES;
use crate::model::{Block, FrameState, Model};
use hotmem::{AllocRequest, BadRequest, NodeChoice, NodeId, PfnRange, Zone};
use hotmem_testkit::PFN_LIMIT;
use hotmem_testkit::{BITMAP_WORD_FRAMES, LONGEST_RUN, PAGEBLOCK, SECTION, numbers, pfn, range};

/// A request with public fields. [`AllocRequest`] has the same fields, but they are private.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelRequest {
    pub frames: u64,
    pub align: u64,
    /// The frame number that the allocation must end at or below.
    pub below: u64,
    pub movable: bool,
    /// The exact place.
    pub at: Option<u64>,
    pub node: Option<NodeChoice>,
}

impl ModelRequest {
    pub(crate) fn frames(frames: u64) -> ModelRequest {
        ModelRequest { frames, align: 1, below: PFN_LIMIT, movable: false, at: None, node: None }
    }

    pub(crate) fn alloc_request(&self) -> AllocRequest {
        let request =
            AllocRequest::frames(self.frames).aligned(self.align).within(..pfn(self.below));
        let request = if self.movable { request.movable() } else { request };
        let request = self.node.map_or(request, |choice| request.node(choice));
        self.at.map_or(request, |at| request.at(pfn(at)))
    }

    /// Returns the error that the engine must return if the request is invalid.
    pub(crate) fn expected_error(&self) -> Option<BadRequest> {
        if self.frames == 0 {
            return Some(BadRequest::Empty);
        }
        if self.align.count_ones() != 1 {
            return Some(BadRequest::Alignment { frames: self.align });
        }
        if self.frames > PFN_LIMIT || self.align > PFN_LIMIT {
            return Some(BadRequest::TooLong { frames: self.frames });
        }
        let at = self.at?;
        let fits = at.is_multiple_of(self.align) && at + self.frames <= self.below;
        (!fits).then_some(BadRequest::Place(pfn(at)))
    }
}

impl Model<'_> {
    /// Returns whether this frame is free and may serve the request.
    pub(crate) fn is_free_for(&self, frame: u64, request: &ModelRequest) -> bool {
        let block = &self.blocks[(frame / PAGEBLOCK) as usize];
        block.online
            && !block.is_held()
            && (request.movable || !block.movable)
            && self.frame_states[frame as usize] == FrameState::Free
            && match request.node {
                Some(NodeChoice::Only(node)) => self.node_of(frame) == Some(node),
                _ => true,
            }
    }

    /// Returns whether a frame that a request has parked is free kernel memory once it is recalled.
    pub(crate) fn is_free_if_recalled(&self, frame: u64) -> bool {
        let block = &self.blocks[(frame / PAGEBLOCK) as usize];
        block.online && !block.movable && self.frame_states[frame as usize] == FrameState::Free
    }

    /// Returns the node and zone that must serve a request that names a node: the first ones, in
    /// the order of preference, that have the memory.
    pub(crate) fn first_choice(&self, request: &ModelRequest) -> Option<(NodeId, Zone)> {
        let choice = request.node?;
        let (NodeChoice::Near(node) | NodeChoice::Avoiding(node) | NodeChoice::Only(node)) = choice;
        if request.at.is_some() {
            return None;
        }
        let mut nodes = self.nodes_from(node);
        match choice {
            NodeChoice::Only(_) => nodes = vec![node],
            NodeChoice::Avoiding(_) if self.known_nodes.contains(&node) => nodes.rotate_left(1),
            _ => {}
        }
        let zones =
            if request.movable { &[Zone::Movable, Zone::Kernel][..] } else { &[Zone::Kernel] };
        let places = nodes.into_iter().flat_map(|node| zones.iter().map(move |&zone| (node, zone)));
        let mut places = places.filter(|&(node, zone)| {
            self.can_grant_in(
                &ModelRequest { node: Some(NodeChoice::Only(node)), ..*request },
                Some(zone),
            )
        });
        places.next()
    }

    /// Returns a node, and then the others in the order in which they are tried. An unknown node stands
    /// for the first node that is online.
    fn nodes_from(&self, node: NodeId) -> Vec<NodeId> {
        let first = self.nodes.first().copied().unwrap_or_default();
        let node = if self.known_nodes.contains(&node) { node } else { first };
        let others = NODES.into_iter().filter(|&other| other != node);
        [node].into_iter().chain(others).collect()
    }

    /// Returns whether a request without an exact place can be served at all.
    pub(crate) fn can_grant(&self, request: &ModelRequest) -> bool {
        self.can_grant_in(request, None)
    }

    fn can_grant_in(&self, request: &ModelRequest, zone: Option<Zone>) -> bool {
        let size = self.frame_states.len() as u64;
        let step = match request.frames {
            frames if frames <= BITMAP_WORD_FRAMES => 1,
            frames if frames <= LONGEST_RUN => BITMAP_WORD_FRAMES,
            _ => PAGEBLOCK,
        };
        let mut starts = (0..size).step_by(step as usize);
        starts.any(|start| {
            start.is_multiple_of(request.align)
                && start + request.frames <= request.below
                && start + request.frames <= size
                && zone.is_none_or(|zone| self.block_of(start).movable == (zone == Zone::Movable))
                && if request.frames <= LONGEST_RUN {
                    self.has_run(start, request)
                } else {
                    self.has_blocks(start, request)
                }
        })
    }

    /// Returns whether the frames of the request are free, and lie in one word of a frame bitmap or, if
    /// they are more than a word has, in one pageblock.
    fn has_run(&self, start: u64, request: &ModelRequest) -> bool {
        let unit =
            if request.frames <= BITMAP_WORD_FRAMES { BITMAP_WORD_FRAMES } else { PAGEBLOCK };
        start / unit == (start + request.frames - 1) / unit
            && (start..start + request.frames).all(|frame| self.is_free_for(frame, request))
    }

    /// Returns whether the frames of the request are whole free pageblocks of one zone, one node
    /// and one region, and lie within one section or begin at the start of a section.
    fn has_blocks(&self, start: u64, request: &ModelRequest) -> bool {
        let end = (start + request.frames).next_multiple_of(PAGEBLOCK);
        let one_section = start / SECTION == (end - 1) / SECTION;
        let all = range(start, end - start);
        let Block { movable, node, .. } = *self.block_of(start);
        (one_section || (end - start > SECTION && start.is_multiple_of(SECTION)))
            && self.regions.iter().any(|region| region.range.covers(all))
            && end <= self.frame_states.len() as u64
            && numbers(all).all(|frame| {
                let block = self.block_of(frame);
                self.is_free_for(frame, request) && (block.movable, block.node) == (movable, node)
            })
    }

    /// Returns the first pageblock of an exact place that is not free. If the place is not in one
    /// region, returns all of it.
    pub(crate) fn first_not_free(
        &self,
        place: PfnRange,
        request: &ModelRequest,
    ) -> Option<PfnRange> {
        if !self.in_one_region(place) {
            return Some(place);
        }
        place.chunks(PAGEBLOCK).find(|&block_range| {
            !numbers(block_range).all(|frame| {
                frame < self.frame_states.len() as u64 && self.is_free_for(frame, request)
            })
        })
    }
}
