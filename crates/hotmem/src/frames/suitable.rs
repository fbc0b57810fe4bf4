//! Decides whether a pageblock suits a request: by its address, its node and its kind of memory.

use super::AllocRequest;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::sync::mutant;
use crate::words::{Block, NodeId, SectionWords, Zone};

/// Returns whether the pageblock can hold the request: whether its address, its node and its kind
/// of memory are suitable.
pub(super) fn suits(words: &SectionWords, block: Block<'_>, request: &AllocRequest) -> bool {
    let start = block.start();
    let first =
        first_suitable_frame(block, request).and_then(|first| start.checked_add(first as u64));
    let end = first.and_then(|first| first.checked_add(request.frames));
    end.is_some_and(|end| end <= request.upper_bound)
        && (request.align <= PAGEBLOCK_FRAMES as u64
            || start.number().is_multiple_of(request.align))
        && (!request.boot_only || block.is_boot(words))
        && request.only_node().is_none_or(|node| block.is_on(words, node))
}

/// Returns the first frame of the pageblock at which the request may begin, if there is one.
pub(super) fn first_suitable_frame(block: Block<'_>, request: &AllocRequest) -> Option<usize> {
    let below = request.lower_bound.number().saturating_sub(block.start().number());
    if below == 0 {
        return Some(0);
    }
    // A request for more than 256 frames begins at a pageblock.
    let align = if request.is_small() { request.align } else { PAGEBLOCK_FRAMES as u64 };
    let first = below.checked_next_multiple_of(align)?;
    let fits = first.checked_add(request.frames)? <= PAGEBLOCK_FRAMES as u64;
    usize::try_from(first).ok().filter(|_| fits)
}

/// The zone of pageblocks that a search has chosen, and the node that its request requires. Between
/// the choice and the claim, the pageblocks may go offline, and come online in another zone or on
/// another node. A claimed pageblock changes neither.
#[derive(Clone, Copy)]
pub(super) struct ZoneAndNode {
    pub(super) zone: Zone,
    pub(super) required_node: Option<NodeId>,
}

impl ZoneAndNode {
    pub(super) fn new(zone: Zone, request: &AllocRequest) -> ZoneAndNode {
        ZoneAndNode { zone, required_node: request.only_node() }
    }

    /// Returns whether `blocks` of the section of `block` are still in this zone and on this node.
    pub(super) fn has(self, words: &SectionWords, block: Block<'_>, blocks: u64) -> bool {
        block.section().zone_mask(self.zone) & blocks == blocks
            && is_on_required_node(words, block, self.required_node)
    }
}

/// Returns whether a pageblock is on the node that the request requires.
#[inline]
pub(super) fn is_on_required_node(
    words: &SectionWords,
    block: Block<'_>,
    required_node: Option<NodeId>,
) -> bool {
    mutant!("a claim does not look at the node again" => return true);
    required_node.is_none_or(|node| block.is_on(words, node))
}
