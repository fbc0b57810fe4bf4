//! Looks up the words of sections and pageblocks.

use super::class::Class;
use super::directory::{NodeIndex, NodeRecord, SectionId};
use super::handles::{Block, Part, SectionRef};
use super::search::Search;
use super::zone::Zone;
use super::{NodeId, Section, Words};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::sync::Ordering;

impl Words {
    /// Returns a section by its number, if it has words.
    #[inline]
    pub(super) fn section(&self, id: SectionId) -> Option<SectionRef<'_>> {
        let section = self.directory.section(id)?;
        Some(SectionRef::new(self, section, id))
    }

    /// Returns the section that has this frame, if it has words.
    #[inline]
    pub(crate) fn section_of(&self, pfn: Pfn) -> Option<SectionRef<'_>> {
        self.section(SectionId::of(pfn)?)
    }

    /// Returns the pageblock that has this frame, if its section has words.
    #[inline]
    pub(crate) fn block_of(&self, pfn: Pfn) -> Option<Block<'_>> {
        self.section_of(pfn)?.block_at(pfn)
    }

    /// Returns the words of the section of a frame, if it has words, and the number of the frame's
    /// pageblock in the section. Cost: two loads.
    #[inline]
    pub(crate) fn words_at(&self, pfn: Pfn) -> Option<(&Section, usize)> {
        let section = self.directory.section(SectionId::of(pfn)?)?;
        #[allow(clippy::cast_possible_truncation, reason = "within a section")]
        let offset = (pfn.number() % SECTION_FRAMES as u64) as usize;
        Some((section, offset / PAGEBLOCK_FRAMES))
    }

    /// Returns the index of the node of a frame. The section of the frame must have words.
    #[inline]
    pub(crate) fn node_at(&self, pfn: Pfn) -> NodeIndex {
        let section = SectionId::of(pfn);
        section.and_then(|id| self.directory.node(id)).unwrap_or(NodeIndex::FIRST)
    }

    /// Returns the node of a frame that is present, as RAM or as device memory.
    pub(crate) fn node_of(&self, pfn: Pfn) -> Option<NodeId> {
        let block = self.block_of(pfn)?;
        // Acquire: the node was set before the memory became present.
        let present = block.section.present.load(Ordering::Acquire);
        let is_present = (present | block.section.device_blocks()) & block.mask() != 0;
        is_present.then(|| self.node_of_index(block.node()))
    }

    /// Returns the section and the pageblocks of `piece`, which lies in one section, or `None` if
    /// the section has no words.
    #[inline]
    pub(crate) fn part_of(&self, piece: PfnRange) -> Option<Part<'_>> {
        let section = self.section_of(piece.start())?;
        Some(Part { section, blocks: section.mask_of(piece) })
    }

    /// Returns the section and the pageblocks of `piece`, which lies in one section. If the section
    /// has no words, no part of the section is present, and the error is the first pageblock of
    /// `piece`.
    pub(crate) fn part_or_absent(&self, piece: PfnRange) -> Result<Part<'_>, PfnRange> {
        let first = || piece.chunks(PAGEBLOCK_FRAMES as u64).next().unwrap_or(piece);
        self.part_of(piece).ok_or_else(first)
    }

    /// Iterates over the sections of `range`, each with its pageblocks in the range. Skips sections
    /// without words.
    pub(crate) fn parts(&self, range: PfnRange) -> Parts<'_> {
        let section = SECTION_FRAMES as u64;
        let from = range.start().number() / section;
        let end = if range.is_empty() { from } else { range.end().number().div_ceil(section) };
        Parts { words: self, range, from, end }
    }

    /// Returns the search for the sections of `node` that may have pageblocks of this class.
    pub(crate) fn search(&self, node: NodeIndex, class: Class) -> Search<'_> {
        Search::new(self, node, class)
    }

    /// Returns the first node that has memory online. A request for an unknown node gets memory of
    /// this node.
    pub(crate) fn first_online_node(&self) -> Option<NodeIndex> {
        let has = |node, class| {
            self.search(node, class).peek_all().any(|section| section.available(class) != 0)
        };
        let mut nodes = self.directory.online_nodes();
        nodes.find(|&node| Zone::ALL.into_iter().any(|zone| has(node, Class::online(zone))))
    }

    /// Returns whether the trees of a class have no set bit on any node. Cost: a few loads.
    #[inline]
    pub(crate) fn looks_empty(&self, class: Class) -> bool {
        self.directory.looks_empty(class)
    }

    /// Returns the record of a node, if it was made.
    #[inline]
    pub(crate) fn record(&self, node: NodeIndex) -> Option<&NodeRecord> {
        self.directory.record(node)
    }

    /// Iterates over the sections of retired chunks: the words of withdrawn memory.
    #[cfg(not(loom))]
    pub(crate) fn retired_sections(&self) -> impl Iterator<Item = SectionRef<'_>> {
        // SAFETY: only `Hotplug::reclaim_words` frees retired chunks, and its caller promises that
        // no call that lists metadata runs meanwhile.
        let retired = unsafe { self.directory.retired() };
        retired.map(|(id, section)| SectionRef::new(self, section, id))
    }

    /// Iterates over no sections: models withdraw no memory.
    #[cfg(loom)]
    pub(crate) fn retired_sections(&self) -> impl Iterator<Item = SectionRef<'_>> {
        core::iter::empty()
    }

    /// Iterates over all sections that have words, the lowest first.
    pub(crate) fn sections(&self) -> impl Iterator<Item = SectionRef<'_>> {
        self.parts(PfnRange::ALL).map(|part| part.section)
    }
}

/// Iterator over the parts of a range: see [`Words::parts`].
pub(crate) struct Parts<'a> {
    words: &'a Words,
    range: PfnRange,
    /// The number of the next section, and one past the number of the last section.
    from: u64,
    end: u64,
}

impl<'a> Parts<'a> {
    fn part(&self, id: SectionId) -> Option<Part<'a>> {
        let section = self.words.section(id)?;
        Some(Part { section, blocks: section.mask_of(self.range) })
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        let id = self.words.directory.next_with_words(self.from, self.end)?;
        self.from = id.number() + 1;
        self.part(id)
    }
}

impl DoubleEndedIterator for Parts<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let id = self.words.directory.prev_with_words(self.from, self.end)?;
        self.end = id.number();
        self.part(id)
    }
}
