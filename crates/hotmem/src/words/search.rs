//! Finding sections: the paths of a node, by ascending or descending address.

use super::directory::{NodeIndex, Paths, SECTIONS, SectionId};
use super::{Class, SectionRef, Words};
use crate::addr::Pfn;
use crate::geometry::SECTION_FRAMES;

/// The sections of a node that the paths of one class lead to.
///
/// A place in the search is a frame number. The path to a section is a hint: what is found may
/// have nothing of the class.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    words: &'a Words,
    node: NodeIndex,
    paths: Paths<'a>,
    fixed: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(words: &'a Words, node: NodeIndex, class: Class) -> Search<'a> {
        let paths = words.directory.paths(node, class);
        Search { words, node, paths, fixed: false }
    }

    /// The same, of sections with boot memory only, if `fixed`.
    pub(crate) fn fixed(self, fixed: bool) -> Search<'a> {
        Search { fixed, ..self }
    }

    /// Whether it goes through the section.
    pub(crate) fn includes(self, section: SectionRef<'_>) -> bool {
        section.node() == self.node && (!self.fixed || section.fixed() != 0)
    }

    /// The first section that begins at or above `from`. Clears paths that lead nowhere.
    ///
    /// Cost: a few loads a level.
    pub(crate) fn next(self, from: Pfn) -> Option<SectionRef<'a>> {
        self.next_counted(from, &mut 0)
    }

    /// The same, and counts the words that it reads.
    pub(crate) fn next_counted(self, from: Pfn, words: &mut u64) -> Option<SectionRef<'a>> {
        let mut from = from;
        loop {
            let first = SectionId::of(from.align_up(SECTION_FRAMES as u64))?;
            let id = self.paths.next_counted(first, words)?;
            let Some(found) = self.words.section(id) else {
                self.paths.hide_absent(id);
                from = id.start().checked_add(SECTION_FRAMES as u64)?;
                continue;
            };
            if !self.fixed || found.fixed() != 0 {
                return Some(found);
            }
            // Only the ranges say what is boot memory.
            let above = self.words.fixed_ranges().filter(|range| range.end() > found.end());
            from = above.map(|range| range.start().max(found.end())).min()?;
            from = from.align_down(SECTION_FRAMES as u64);
        }
    }

    /// The first section that begins at or above `from`, for onlookers: clears nothing, and so hides
    /// nothing from those that the paths are there for, not even for a moment.
    pub(crate) fn peek(self, from: Pfn) -> Option<SectionRef<'a>> {
        Search { paths: self.paths.peeking(), ..self }.next(from)
    }

    /// The last section that begins below `below`. Clears paths that lead nowhere.
    pub(crate) fn prev(self, below: Pfn) -> Option<SectionRef<'a>> {
        self.prev_counted(below, &mut 0)
    }

    /// The same, and counts the words that it reads.
    pub(crate) fn prev_counted(self, below: Pfn, words: &mut u64) -> Option<SectionRef<'a>> {
        let mut below = below.number();
        loop {
            let last = (below.checked_sub(1)? / SECTION_FRAMES as u64).min(SECTIONS as u64 - 1);
            let id = self.paths.prev_counted(SectionId::new(last)?, words)?;
            let Some(found) = self.words.section(id) else {
                self.paths.hide_absent(id);
                below = id.start().number();
                continue;
            };
            if !self.fixed || found.fixed() != 0 {
                return Some(found);
            }
            below = found.start().number();
        }
    }

    /// All sections that begin at or above `from`, each looked for when it is asked for.
    pub(crate) fn all_from(self, from: Pfn) -> impl Iterator<Item = SectionRef<'a>> {
        iterate(from, move |from| self.next(from))
    }

    /// All sections, for onlookers: see [`peek`](Self::peek).
    pub(crate) fn peek_all(self) -> impl Iterator<Item = SectionRef<'a>> {
        iterate(Pfn::ZERO, move |from| self.peek(from))
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
