//! Makes requests, and computes whether the model could serve them.

use crate::lifecycle::NODES;
use crate::world::{Block, Frame, World};
use hotmem::{AllocRequest, BadRequest, NodeChoice, NodeId, PfnRange, Zone, geometry::PFN_LIMIT};
use hotmem_testkit::{BLOCK, SECTION, WORD, numbers, pfn, range};

/// The parts of an [`AllocRequest`], which are public here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub frames: u64,
    pub align: u64,
    pub below: u64,
    pub movable: bool,
    pub at: Option<u64>,
    pub node: Option<NodeChoice>,
}

impl Ask {
    pub(crate) fn frames(frames: u64) -> Ask {
        Ask { frames, align: 1, below: PFN_LIMIT, movable: false, at: None, node: None }
    }

    pub(crate) fn request(&self) -> AllocRequest {
        let request =
            AllocRequest::frames(self.frames).aligned(self.align).within(..pfn(self.below));
        let request = if self.movable { request.movable() } else { request };
        let request = self.node.map_or(request, |choice| request.node(choice));
        self.at.map_or(request, |at| request.at(pfn(at)))
    }

    /// Returns the error of an invalid request.
    pub(crate) fn bad(&self) -> Option<BadRequest> {
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

impl World<'_> {
    /// Returns whether this frame is free and may serve the request.
    pub(crate) fn is_free_for(&self, frame: u64, ask: &Ask) -> bool {
        let block = &self.blocks[(frame / BLOCK) as usize];
        block.online
            && !block.is_held()
            && (ask.movable || !block.movable)
            && self.frame[frame as usize] == Frame::Free
            && match ask.node {
                Some(NodeChoice::Only(node)) => self.node_of(frame) == Some(node),
                _ => true,
            }
    }

    /// Returns the first node and zone, in the order of the request, that could have served a
    /// request that names a node.
    pub(crate) fn first_choice(&self, ask: &Ask) -> Option<(NodeId, Zone)> {
        let choice = ask.node?;
        let (NodeChoice::Near(node) | NodeChoice::Leaving(node) | NodeChoice::Only(node)) = choice;
        if ask.at.is_some() {
            return None;
        }
        let mut nodes = self.order_of(node);
        match choice {
            NodeChoice::Only(_) => nodes = vec![node],
            NodeChoice::Leaving(_) if self.named.contains(&node) => nodes.rotate_left(1),
            _ => {}
        }
        let zones = if ask.movable { &[Zone::Movable, Zone::Kernel][..] } else { &[Zone::Kernel] };
        let places = nodes.into_iter().flat_map(|node| zones.iter().map(move |&zone| (node, zone)));
        let mut places = places.filter(|&(node, zone)| {
            self.can_grant_in(&Ask { node: Some(NodeChoice::Only(node)), ..*ask }, Some(zone))
        });
        places.next()
    }

    /// Returns a node and its fallback nodes, in order. A node that was never named stands for the
    /// first one online.
    fn order_of(&self, node: NodeId) -> Vec<NodeId> {
        let first = self.nodes.first().copied().unwrap_or_default();
        let node = if self.named.contains(&node) { node } else { first };
        let listed = self.fallback.get(&node).into_iter().flatten().copied();
        let mut order = vec![];
        for next in [node].into_iter().chain(listed).chain(NODES) {
            if !order.contains(&next) {
                order.push(next);
            }
        }
        order
    }

    /// Returns whether a request without an exact place can be served at all.
    pub(crate) fn can_grant(&self, ask: &Ask) -> bool {
        self.can_grant_in(ask, None)
    }

    fn can_grant_in(&self, ask: &Ask, zone: Option<Zone>) -> bool {
        let size = self.frame.len() as u64;
        let step = if ask.frames <= WORD { 1 } else { BLOCK };
        let mut starts = (0..size).step_by(step as usize);
        starts.any(|start| {
            start.is_multiple_of(ask.align)
                && start + ask.frames <= ask.below
                && start + ask.frames <= size
                && zone.is_none_or(|zone| self.block_of(start).movable == (zone == Zone::Movable))
                && if ask.frames <= WORD {
                    self.has_run(start, ask)
                } else {
                    self.has_blocks(start, ask)
                }
        })
    }

    /// Returns whether the frames are a run of free bits in one word.
    fn has_run(&self, start: u64, ask: &Ask) -> bool {
        start / WORD == (start + ask.frames - 1) / WORD
            && (start..start + ask.frames).all(|frame| self.is_free_for(frame, ask))
    }

    /// Returns whether the frames are whole free pageblocks of one zone, node and region, which lie
    /// within one section or begin at the start of one.
    fn has_blocks(&self, start: u64, ask: &Ask) -> bool {
        let end = (start + ask.frames).next_multiple_of(BLOCK);
        let one_section = start / SECTION == (end - 1) / SECTION;
        let all = range(start, end - start);
        let Block { movable, node, .. } = *self.block_of(start);
        (one_section || (end - start > SECTION && start.is_multiple_of(SECTION)))
            && self.regions.iter().any(|region| region.range.covers(all))
            && end <= self.frame.len() as u64
            && numbers(all).all(|frame| {
                let block = self.block_of(frame);
                self.is_free_for(frame, ask) && (block.movable, block.node) == (movable, node)
            })
    }

    /// Returns the first piece of an exact place that is not free, or all of the place if it is not
    /// in one region.
    pub(crate) fn first_not_free(&self, place: PfnRange, ask: &Ask) -> Option<PfnRange> {
        if !self.in_one_region(place) {
            return Some(place);
        }
        place.chunks(BLOCK).find(|&piece| {
            !numbers(piece)
                .all(|frame| frame < self.frame.len() as u64 && self.is_free_for(frame, ask))
        })
    }
}
