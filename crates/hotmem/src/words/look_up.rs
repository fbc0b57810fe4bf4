//! Looks up the words (the engine's metadata) of sections and pageblocks.

use super::class::Class;
use super::directory::{NodeIndex, NodeRecord, SectionId};
use super::handles::{Block, SectionPart, SectionRef};
use super::search::Search;
use super::zone::Zone;
use super::{NodeId, Section, SectionWords};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::sync::Ordering;

impl SectionWords {
    /// Returns a section by its number, or `None` if the section has no words: they are made when
    /// memory is first added there.
    #[inline(never)]
    pub(super) fn section(&self, id: SectionId) -> Option<SectionRef<'_>> {
        let section = self.directory.section(id)?;
        Some(SectionRef::new(section, id))
    }

    /// Returns the section that contains this frame, if the section has words.
    pub(crate) fn section_of(&self, pfn: Pfn) -> Option<SectionRef<'_>> {
        self.section(SectionId::of(pfn)?)
    }

    /// Returns the pageblock that contains this frame, if its section has words.
    #[inline(never)]
    pub(crate) fn block_of(&self, pfn: Pfn) -> Option<Block<'_>> {
        self.section(SectionId::of(pfn)?)?.block_at(pfn)
    }

    /// Returns the words of the section that contains this frame, and the number of the frame's
    /// pageblock in the section. Returns `None` if the section has no words. Cost: two loads.
    #[inline]
    pub(crate) fn section_words_at(&self, pfn: Pfn) -> Option<(&Section, usize)> {
        let section = self.directory.section(SectionId::of(pfn)?)?;
        #[allow(clippy::cast_possible_truncation, reason = "within a section")]
        let offset = (pfn.number() % SECTION_FRAMES as u64) as usize;
        Some((section, offset / PAGEBLOCK_FRAMES))
    }

    /// Returns the index of the node of a frame. The section of the frame must have words.
    #[inline]
    pub(crate) fn node_index_at(&self, pfn: Pfn) -> NodeIndex {
        let section = SectionId::of(pfn);
        section.and_then(|id| self.directory.node(id)).unwrap_or(NodeIndex::FIRST)
    }

    /// Returns the node of a frame that is present, as RAM or as device memory.
    pub(crate) fn node_of(&self, pfn: Pfn) -> Option<NodeId> {
        let block = self.block_of(pfn)?;
        // Acquire: the node was set before the memory became present.
        let present = block.section().present.load(Ordering::Acquire);
        let is_present = (present | block.section().device_blocks()) & block.mask() != 0;
        is_present.then(|| self.node_of_index(block.node(self)))
    }

    /// Returns the section and the pageblocks of `range`, which lies in one section, or `None` if
    /// the section has no words.
    #[inline(never)]
    pub(crate) fn section_part(&self, range: PfnRange) -> Option<SectionPart<'_>> {
        let section = self.section_of(range.start())?;
        Some(SectionPart { section, blocks: section.mask_of(range) })
    }

    /// Returns the section and the pageblocks of `range`, which lies in one section. If the section
    /// has no words, no part of the section is present, and the error is the first pageblock of
    /// `range`.
    pub(crate) fn section_part_or_absent(
        &self,
        range: PfnRange,
    ) -> Result<SectionPart<'_>, PfnRange> {
        let first = || range.chunks(PAGEBLOCK_FRAMES as u64).next().unwrap_or(range);
        self.section_part(range).ok_or_else(first)
    }

    /// Iterates over the sections of `range`, each with its pageblocks in the range. Skips sections
    /// without words.
    #[inline(never)]
    pub(crate) fn section_parts(&self, range: PfnRange) -> SectionParts<'_> {
        let section = SECTION_FRAMES as u64;
        let from = range.start().number() / section;
        let end = if range.is_empty() { from } else { range.end().number().div_ceil(section) };
        SectionParts { words: self, range, next_section: from, end_section: end }
    }

    /// Returns the search for the sections of `node` that may have pageblocks of this class.
    pub(crate) fn search(&self, node: NodeIndex, class: Class) -> Search<'_> {
        Search::new(self, node, class)
    }

    /// Returns the first node that has memory online. A request for an unknown node gets memory of
    /// this node.
    pub(crate) fn first_online_node(&self) -> Option<NodeIndex> {
        let has_pageblocks = |node, class| {
            self.search(node, class).all_read_only().any(|section| section.available(class) != 0)
        };
        let mut nodes = self.directory.online_nodes();
        nodes.find(|&node| {
            Zone::ALL.into_iter().any(|zone| has_pageblocks(node, Class::online(zone)))
        })
    }

    /// Returns whether no tree of this class has a set bit: there is one tree for each NUMA node.
    /// Cost: a few loads.
    pub(crate) fn looks_empty(&self, class: Class) -> bool {
        self.directory.looks_empty(class)
    }

    /// Returns the record of a node, if it was made.
    #[inline]
    pub(crate) fn record(&self, node: NodeIndex) -> Option<&NodeRecord> {
        self.directory.record(node)
    }

    /// Iterates over all sections that have words, the lowest first.
    pub(crate) fn sections(&self) -> impl Iterator<Item = SectionRef<'_>> {
        self.section_parts(PfnRange::ALL).map(|part| part.section)
    }
}

/// Iterator over the parts of a range: see [`SectionWords::section_parts`].
pub(crate) struct SectionParts<'a> {
    words: &'a SectionWords,
    range: PfnRange,
    /// The number of the next section, and one past the number of the last section.
    next_section: u64,
    end_section: u64,
}

impl<'a> SectionParts<'a> {
    fn part(&self, (words, id): (&'a Section, SectionId)) -> SectionPart<'a> {
        let section = SectionRef::new(words, id);
        SectionPart { section, blocks: section.mask_of(self.range) }
    }
}

impl<'a> Iterator for SectionParts<'a> {
    type Item = SectionPart<'a>;

    fn next(&mut self) -> Option<SectionPart<'a>> {
        let found = self.words.directory.next_section(self.next_section, self.end_section)?;
        self.next_section = found.1.number() + 1;
        Some(self.part(found))
    }
}

impl DoubleEndedIterator for SectionParts<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let found = self.words.directory.prev_section(self.next_section, self.end_section)?;
        self.end_section = found.1.number();
        Some(self.part(found))
    }
}
