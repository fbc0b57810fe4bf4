//! Finding sections: the trees of a node, by ascending address.

use super::region::Region;
use super::tree::Tree;
use super::{Class, NodeId, SectionRef};
use crate::addr::Pfn;

/// The sections of a node that the trees of one class lead to.
///
/// A place in the search is a frame number. The path to a section is a hint: what is found may
/// have nothing of the class.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    regions: &'a [Region],
    node: NodeId,
    class: Class,
    fixed: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(regions: &'a [Region], node: NodeId, class: Class) -> Search<'a> {
        Search { regions, node, class, fixed: false }
    }

    /// The same, of boot memory only, if `fixed`.
    pub(crate) fn fixed(self, fixed: bool) -> Search<'a> {
        Search { fixed, ..self }
    }

    /// Whether it goes through the section.
    pub(crate) fn includes(self, section: SectionRef<'_>) -> bool {
        section.node() == self.node && (!self.fixed || section.is_fixed())
    }

    /// The first section that begins at or above `from`. Clears paths that lead nowhere.
    ///
    /// Cost: a few loads a level of the tree.
    pub(crate) fn next(self, from: Pfn) -> Option<SectionRef<'a>> {
        self.walk(from, |tree, from| tree.next(from))
    }

    /// The same, and counts the words that it reads.
    pub(crate) fn next_counted(self, from: Pfn, words: &mut u64) -> Option<SectionRef<'a>> {
        self.walk(from, |tree, from| tree.next_counted(from, words))
    }

    /// The same for onlookers: clears nothing, and so hides nothing from those that the trees are
    /// there for, not even for a moment.
    pub(crate) fn peek(self, from: Pfn) -> Option<SectionRef<'a>> {
        self.walk(from, |tree, from| tree.peek(from))
    }

    /// The last section that begins below `below`. Clears paths that lead nowhere.
    pub(crate) fn prev(self, below: Pfn) -> Option<SectionRef<'a>> {
        self.walk_down(below, |tree, from| tree.prev(from))
    }

    /// The same, and counts the words that it reads.
    pub(crate) fn prev_counted(self, below: Pfn, words: &mut u64) -> Option<SectionRef<'a>> {
        self.walk_down(below, |tree, from| tree.prev_counted(from, words))
    }

    /// All sections that begin at or above `from`, each looked for when it is asked for.
    pub(crate) fn all_from(self, from: Pfn) -> impl Iterator<Item = SectionRef<'a>> {
        iterate(from, move |from| self.next(from))
    }

    /// All sections, for onlookers: see [`peek`](Self::peek).
    pub(crate) fn peek_all(self) -> impl Iterator<Item = SectionRef<'a>> {
        iterate(Pfn::ZERO, move |from| self.peek(from))
    }

    fn walk(
        self,
        from: Pfn,
        mut next: impl FnMut(Tree<'a>, usize) -> Option<usize>,
    ) -> Option<SectionRef<'a>> {
        let mut from = from.number();
        loop {
            let regions = self.regions().filter(|(_, region)| region.end() > from);
            let (slot, region) = regions.min_by_key(|(_, region)| region.begin())?;
            let found = next(region.tree(self.class), region.first_section_from(from));
            if let Some(index) = found.filter(|&index| index < region.section_count()) {
                return SectionRef::look_up(region, slot, index);
            }
            from = region.end().max(from + 1);
        }
    }

    fn walk_down(
        self,
        below: Pfn,
        mut prev: impl FnMut(Tree<'a>, usize) -> Option<usize>,
    ) -> Option<SectionRef<'a>> {
        let mut below = below.number();
        loop {
            let regions =
                self.regions().filter(|(_, region)| region.begin() < below && region.end() != 0);
            let (slot, region) = regions.max_by_key(|(_, region)| region.begin())?;
            let found = prev(region.tree(self.class), region.last_section_below(below));
            if let Some(index) = found.filter(|&index| index >= region.first_section()) {
                return SectionRef::look_up(region, slot, index);
            }
            below = region.begin().min(below - 1);
        }
    }

    /// The regions that it goes through, but for those of which a single load says that they have
    /// nothing of the class.
    #[inline]
    fn regions(self) -> impl Iterator<Item = (usize, &'a Region)> {
        let regions = self.regions.iter().enumerate();
        regions.filter(move |(_, region)| {
            region.node() == self.node
                && (!self.fixed || region.is_fixed())
                && !region.tree(self.class).looks_empty()
        })
    }
}

fn iterate<'a>(
    mut from: Pfn,
    next: impl Fn(Pfn) -> Option<SectionRef<'a>>,
) -> impl Iterator<Item = SectionRef<'a>> {
    core::iter::from_fn(move || {
        let found = next(from)?;
        from = found.end();
        Some(found)
    })
}
