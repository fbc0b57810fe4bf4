//! Looking up the words of sections and pageblocks.

use super::at::{Block, Part, SectionRef};
use super::class::Class;
use super::node::{NodeId, NodeSet};
use super::region::{MAX_REGIONS, Region};
use super::search::Search;
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, mask};
use crate::sync::{Ordering, array_of, const_unless_loom, settled};

/// All words of a machine.
pub(crate) struct Words {
    /// Slots below this number have been used.
    pub(super) slots_used: settled::AtomicUsize,
    pub(super) regions: [Region; MAX_REGIONS],
    /// A bit for each node on which a range was ever announced.
    pub(super) nodes: settled::AtomicU64,
}

impl Words {
    const_unless_loom! {
        /// Nothing is announced.
        pub(crate) fn new() -> Words {
            Words {
                slots_used: settled::AtomicUsize::new(0),
                regions: array_of![Region::unused(); MAX_REGIONS],
                nodes: settled::AtomicU64::new(0),
            }
        }
    }

    /// The slots that may hold a region.
    pub(super) fn regions(&self) -> &[Region] {
        // Acquire pairs with `announce`.
        let used = self.slots_used.load(Ordering::Acquire).min(MAX_REGIONS);
        &self.regions[..used]
    }

    /// The region that has this frame, and the frame's distance from the region's base.
    #[inline]
    pub(super) fn find(&self, pfn: Pfn) -> Option<(usize, usize)> {
        self.regions()
            .iter()
            .enumerate()
            .find_map(|(slot, region)| region.offset_of(pfn).map(|offset| (slot, offset)))
    }

    /// Section `index` of the region in `slot`.
    #[inline]
    pub(super) fn section_in(&self, slot: usize, index: usize) -> Option<SectionRef<'_>> {
        SectionRef::look_up(self.regions.get(slot)?, slot, index)
    }

    /// The section that has this frame, if the frame is announced.
    #[inline]
    pub(crate) fn section_of(&self, pfn: Pfn) -> Option<SectionRef<'_>> {
        let (slot, offset) = self.find(pfn)?;
        self.section_in(slot, offset / SECTION_FRAMES)
    }

    /// The pageblock that has this frame, if the frame is announced.
    #[inline]
    pub(crate) fn block_of(&self, pfn: Pfn) -> Option<Block<'_>> {
        let (slot, offset) = self.find(pfn)?;
        let (index, bit) = (offset / SECTION_FRAMES, offset % SECTION_FRAMES / PAGEBLOCK_FRAMES);
        Block::look_up(self.regions.get(slot)?, slot, index, bit)
    }

    /// The node of a frame, if the frame is announced.
    pub(crate) fn node_of(&self, pfn: Pfn) -> Option<NodeId> {
        let (slot, _) = self.find(pfn)?;
        Some(self.regions.get(slot)?.node())
    }

    /// The part of one section as a word. `None` if not all of `piece` is announced.
    #[inline]
    pub(crate) fn part_of(&self, piece: PfnRange) -> Option<Part<'_>> {
        let (slot, _) = self.find(piece.start())?;
        if !self.regions.get(slot)?.range()?.covers(piece) {
            return None;
        }
        self.part_in(slot, piece)
    }

    /// The parts of `range` by section, as words. What is not announced is left out.
    pub(crate) fn parts(&self, range: PfnRange) -> impl DoubleEndedIterator<Item = Part<'_>> {
        // Nearly always within one region, which then need not be looked for again and again.
        let within = self.find(range.start()).map(|(slot, _)| slot);
        let within =
            within.filter(|&slot| self.regions[slot].range().is_some_and(|all| all.covers(range)));
        let slots = within.map_or(0..self.regions().len(), |slot| slot..slot + 1);
        range
            .sections()
            .flat_map(move |piece| slots.clone().filter_map(move |slot| self.part_in(slot, piece)))
    }

    /// What the region in `slot` has of a part of one section.
    fn part_in(&self, slot: usize, piece: PfnRange) -> Option<Part<'_>> {
        let region = self.regions.get(slot)?;
        let piece = region.range()?.intersection(piece);
        let offset = region.offset_of(piece.start()).filter(|_| !piece.is_empty())?;
        let first = offset % SECTION_FRAMES;
        #[allow(clippy::cast_possible_truncation, reason = "at most a section")]
        let end = first + piece.frames() as usize;
        let blocks = mask(end.div_ceil(PAGEBLOCK_FRAMES)) & !mask(first / PAGEBLOCK_FRAMES);
        Some(Part { section: self.section_in(slot, offset / SECTION_FRAMES)?, blocks })
    }

    /// The sections of `node` of which a part is of this class, by ascending address.
    pub(crate) fn search(&self, node: NodeId, class: Class) -> Search<'_> {
        Search::new(self.regions(), node, class)
    }

    /// Whether the trees of a class lead nowhere, on no node. Cost: a load a region.
    pub(crate) fn looks_empty(&self, class: Class) -> bool {
        self.regions().iter().all(|region| region.tree(class).looks_empty())
    }

    /// The nodes on which something was ever announced.
    pub(crate) fn nodes(&self) -> NodeSet {
        NodeSet::from_bits(self.nodes.load(Ordering::Relaxed))
    }
}
