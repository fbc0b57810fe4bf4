//! Chooses the frames that hold the descriptors of RAM.
//!
//! The descriptors of a section may fill whole large pages of the map; with 64 bytes each they fill
//! one page of 2 MiB. A section that is then added as a whole holds its descriptors in its own
//! first pageblocks, mapped by large pages. Memory that is added in smaller parts has its
//! descriptors in frames of other memory. If a part of a section is removed and added again while
//! the section's first pageblocks have stayed, its descriptors are still there.

#[cfg(test)]
mod tests;

use crate::descriptor_map::{
    Access, DescriptorLayout, DescriptorMap, DescriptorMapError, PAGES_PER_L1_TABLE,
};
use core::cell::RefCell;
use core::ops::Range;
use hotmem_addr::geometry::SECTION_FRAMES;
use hotmem_addr::{Pfn, PfnRange};
use hotmem_pgtable::Tables;

/// The numbers of pages that one L2 table and one L3 table cover.
const PAGES_PER_L2_TABLE: u64 = PAGES_PER_L1_TABLE * PAGES_PER_L1_TABLE;
const PAGES_PER_L3_TABLE: u64 = PAGES_PER_L1_TABLE * PAGES_PER_L2_TABLE;

const SECTION: u64 = SECTION_FRAMES as u64;

impl DescriptorLayout {
    /// Returns how many of its first frames a section that is added as a whole keeps for its own
    /// descriptors: 0 if the descriptors of a section do not fill whole large pages.
    #[must_use]
    pub fn frames_kept(&self) -> u64 {
        let pages = self.pages_of(PfnRange::with_len(Pfn::ZERO, SECTION).unwrap_or_default());
        if pages.end.is_multiple_of(PAGES_PER_L1_TABLE) { pages.end } else { 0 }
    }

    /// Returns the frames at the start of `part` that hold the descriptors of the section, or
    /// `None` if `part` is not a whole section or its descriptors lie elsewhere.
    fn kept(&self, part: PfnRange) -> Option<PfnRange> {
        let kept = Some(self.frames_kept()).filter(|&kept| kept > 0)?;
        (part.frames() == SECTION).then_some(PfnRange::with_len(part.start(), kept)?)
    }
}

impl<T: Tables + Copy> DescriptorMap<T> {
    /// Returns the largest number of frames that [`map_ram`](Self::map_ram) takes for `range`,
    /// tables included.
    #[must_use]
    pub fn frames_needed(&self, range: PfnRange) -> u64 {
        let tables =
            |pages: &Range<u64>, covered: u64| pages.end.div_ceil(covered) - pages.start / covered;
        let lower = |part: PfnRange| {
            let pages = self.layout().pages_of(part);
            if self.layout().kept(part).is_some() || self.is_large(pages.start) {
                return 0;
            }
            pages.end - pages.start + tables(&pages, PAGES_PER_L1_TABLE)
        };
        let pages = self.layout().pages_of(range);
        let upper = tables(&pages, PAGES_PER_L2_TABLE) + tables(&pages, PAGES_PER_L3_TABLE);
        upper + range.sections().map(lower).sum::<u64>()
    }

    /// Maps the descriptors of `range`, which consists of whole pageblocks. Descriptors that are
    /// mapped already keep their frames. Takes at most [`frames_needed`](Self::frames_needed)
    /// frames from `frame`.
    ///
    /// # Errors
    /// [`DescriptorMapError`]. What was mapped so far stays mapped.
    pub fn map_ram(
        &mut self,
        range: PfnRange,
        mut frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        for part in range.sections() {
            let pages = self.layout().pages_of(part);
            if let Some(kept) = self.layout().kept(part) {
                self.map(pages.start, kept, &mut frame)?;
            } else if !self.is_large(pages.start) {
                for page in pages {
                    if self.frame(page).is_some() {
                        continue;
                    }
                    let behind = frame().ok_or(DescriptorMapError::NoTable(page))?;
                    let behind = [(page, behind, Access::Write)];
                    self.map_each(behind.into_iter(), &mut frame)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the pages of the map to unmap when `range` is removed: those of its own descriptors,
    /// and all of the section's if `range` is the last part of a section that holds its own
    /// descriptors.
    #[must_use]
    pub fn pages_with(&self, range: PfnRange) -> Range<u64> {
        let pages = self.layout().pages_of(range);
        let Some(last) = range.end().number().checked_sub(1).and_then(Pfn::new) else {
            return pages;
        };
        let section = PfnRange::with_len(last.align_down(SECTION), SECTION);
        let section = section.filter(|section| range.contains(section.start()));
        match section.map(|section| self.layout().pages_of(section)) {
            Some(of_section) if self.is_large(of_section.start) => pages.start..of_section.end,
            _ => pages,
        }
    }

    /// Unmaps the descriptors of `range`. Passes to `free` the frames that held them, unless they
    /// belong to `range` itself, and the tables that map nothing any more.
    pub fn unmap_ram(&mut self, range: PfnRange, flush: impl FnMut(), free: &mut dyn FnMut(Pfn)) {
        let free = RefCell::new(free);
        let pages = self.pages_with(range);
        let back = |frames: PfnRange, _| {
            let others = frames.chunks(1).map(PfnRange::start);
            let others = others.filter(|&frame| !range.contains(frame));
            others.for_each(|frame| (free.borrow_mut())(frame));
        };
        self.unmap(pages, flush, back, |table| (free.borrow_mut())(table));
    }
}
