//! Finds the sections of a node, by ascending or descending address.

use super::directory::{NodeIndex, Paths, SECTIONS, SectionId};
use super::read_count::ReadCount;
use super::{Class, SectionRef, SectionWords};
use crate::addr::Pfn;
use crate::geometry::SECTION_FRAMES;
use crate::invariant::OrRecordViolation;

/// A search for the sections of a node that the tree of one class leads to.
///
/// The tree is a hint: a section that is found may have no pageblocks of the class.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    words: &'a SectionWords,
    node: NodeIndex,
    paths: Paths<'a>,
    only_boot: bool,
    /// The search covers only sections that begin below this frame.
    end: Pfn,
}

impl<'a> Search<'a> {
    pub(super) fn new(words: &'a SectionWords, node: NodeIndex, class: Class) -> Search<'a> {
        let paths = words.directory.paths(node, class);
        Search { words, node, paths, only_boot: false, end: Pfn::LIMIT }
    }

    /// Returns the same search; if `only_boot` is true, limited to sections with boot memory.
    pub(crate) fn only_boot(self, only_boot: bool) -> Search<'a> {
        Search { only_boot, ..self }
    }

    /// Returns the same search, limited to sections that begin below `end`. So the cost of a search
    /// for memory below a bound does not depend on the memory above the bound. Holds for searches by
    /// ascending address.
    pub(crate) fn below(self, end: Pfn) -> Search<'a> {
        Search { end, paths: self.paths.below(end), ..self }
    }

    /// Returns whether the search covers the section.
    pub(crate) fn includes(&self, section: SectionRef<'_>) -> bool {
        section.node(self.words) == self.node
            && section.start() < self.end
            && (!self.only_boot || section.boot_blocks(self.words) != 0)
    }

    /// Returns the first section that begins at or above `from`. Clears the stale bits that it
    /// meets.
    ///
    /// Cost: a few loads for each level.
    pub(crate) fn next(&self, from: Pfn) -> Option<SectionRef<'a>> {
        self.next_counting_reads(from, &mut ReadCount::default())
    }

    /// Searches as [`next`](Self::next) does, and adds the number of words that it reads to
    /// `words_read`.
    pub(crate) fn next_counting_reads(
        &self,
        from: Pfn,
        words_read: &mut ReadCount,
    ) -> Option<SectionRef<'a>> {
        let mut from = from;
        loop {
            if from >= self.end {
                return None;
            }
            let first = SectionId::of(from.align_up(SECTION_FRAMES as u64))?;
            let id = self.paths.next_counting_reads(first, words_read)?;
            if id.start() >= self.end {
                return None;
            }
            let section = self.words.section(id).or_record_violation()?;
            if !self.only_boot || section.boot_blocks(self.words) != 0 {
                return Some(section);
            }
            // The trees do not tell boot memory, so skip to the next announced range of boot
            // memory.
            let mut above = None;
            for range in self.words.boot_ranges() {
                if range.end() > section.end() && above.is_none_or(|above| range.start() < above) {
                    above = Some(range.start());
                }
            }
            from = above?.max(section.end()).align_down(SECTION_FRAMES as u64);
        }
    }

    /// Returns the first section that begins at or above `from`, for code that only looks. It
    /// clears no bit, so that it never hides a section from the searches of the allocator, not even
    /// for a moment.
    #[inline(never)]
    pub(crate) fn next_read_only(&self, from: Pfn) -> Option<SectionRef<'a>> {
        Search { paths: self.paths.read_only(), ..*self }.next(from)
    }

    /// Returns the last section that begins below `below`. Clears the stale bits that it meets.
    pub(crate) fn prev(&self, below: Pfn) -> Option<SectionRef<'a>> {
        self.prev_counting_reads(below, &mut ReadCount::default())
    }

    /// Searches as [`prev`](Self::prev) does, and adds the number of words that it reads to
    /// `words_read`.
    pub(crate) fn prev_counting_reads(
        &self,
        below: Pfn,
        words_read: &mut ReadCount,
    ) -> Option<SectionRef<'a>> {
        let mut below = below.number();
        loop {
            let last = (below.checked_sub(1)? / SECTION_FRAMES as u64).min(SECTIONS as u64 - 1);
            let id = self.paths.prev_counting_reads(SectionId::new(last)?, words_read)?;
            let section = self.words.section(id).or_record_violation()?;
            if !self.only_boot || section.boot_blocks(self.words) != 0 {
                return Some(section);
            }
            below = section.start().number();
        }
    }

    /// Iterates over all sections that begin at or above `start`, and then over those from `from` to
    /// `start`.
    pub(crate) fn all_round(self, from: Pfn, start: Pfn) -> impl Iterator<Item = SectionRef<'a>> {
        let (mut next, mut end) = (start, Pfn::LIMIT);
        core::iter::from_fn(move || {
            loop {
                if let Some(section) = self.next(next).filter(|section| section.start() < end) {
                    next = section.end();
                    return Some(section);
                }
                if start == from || end == start {
                    return None;
                }
                (next, end) = (from, start);
            }
        })
    }

    /// Iterates over all sections, for code that only looks: see
    /// [`next_read_only`](Self::next_read_only).
    pub(crate) fn all_read_only(self) -> impl Iterator<Item = SectionRef<'a>> {
        let mut next = Pfn::ZERO;
        core::iter::from_fn(move || {
            let section = self.next_read_only(next)?;
            next = section.end();
            Some(section)
        })
    }
}
