//! Chooses the frames that hold the descriptors of RAM.
//!
//! The descriptors of a section may fill whole large pages of the map: descriptors of 64 bytes fill
//! one page of 2 MiB. If such a section is added as a whole, its own first pageblocks hold its
//! descriptors, mapped by large pages. If memory is added in smaller parts, frames of other memory
//! hold its descriptors. If a part of a section is removed and added again while the section's
//! first pageblocks stay, the descriptors of that part stay mapped.

#[cfg(test)]
mod tests;

use crate::descriptor_map::{
    DescriptorLayout, DescriptorMap, DescriptorMapError, PAGES_PER_L1_TABLE,
};
use core::cell::RefCell;
use core::ops::Range;
use hotmem_addr::{Pfn, PfnRange, geometry};
use hotmem_pgtable::{Flusher, Tables};

/// The number of pages that one L2 table covers.
const PAGES_PER_L2_TABLE: u64 = PAGES_PER_L1_TABLE * PAGES_PER_L1_TABLE;
/// The number of pages that one L3 table covers.
const PAGES_PER_L3_TABLE: u64 = PAGES_PER_L1_TABLE * PAGES_PER_L2_TABLE;

const SECTION_FRAMES: u64 = geometry::SECTION_FRAMES as u64;

impl DescriptorLayout {
    /// Returns how many frames at the start of a section hold the section's own descriptors if it
    /// is added as a whole. This is 0 if the descriptors do not fill whole large pages.
    #[must_use]
    pub fn frames_per_section(&self) -> u64 {
        let pages =
            self.pages_of(PfnRange::with_len(Pfn::ZERO, SECTION_FRAMES).unwrap_or_default());
        if pages.end.is_multiple_of(PAGES_PER_L1_TABLE) { pages.end } else { 0 }
    }

    /// Returns the frames at the start of `part` that hold the descriptors of the section. Returns
    /// `None` if `part` is not a whole section, or if other memory holds its descriptors.
    fn own_descriptor_frames(&self, part: PfnRange) -> Option<PfnRange> {
        let count = Some(self.frames_per_section()).filter(|&count| count > 0)?;
        (part.frames() == SECTION_FRAMES).then_some(PfnRange::with_len(part.start(), count)?)
    }
}

impl<T: Tables + Copy, F: Flusher + Copy> DescriptorMap<T, F> {
    /// Returns an upper bound of the number of frames that [`map_ram`](Self::map_ram) takes for
    /// `range`, including frames for tables.
    #[must_use]
    pub fn frames_needed(&self, range: PfnRange) -> u64 {
        let tables = |pages: &Range<u64>, pages_per_table: u64| {
            pages.end.div_ceil(pages_per_table) - pages.start / pages_per_table
        };
        let frames_in_section = |part: PfnRange| {
            let pages = self.layout().pages_of(part);
            if self.layout().own_descriptor_frames(part).is_some() || self.is_large(pages.start) {
                return 0;
            }
            pages.end - pages.start + tables(&pages, PAGES_PER_L1_TABLE)
        };
        let pages = self.layout().pages_of(range);
        let upper_tables = tables(&pages, PAGES_PER_L2_TABLE) + tables(&pages, PAGES_PER_L3_TABLE);
        upper_tables + range.chunks(SECTION_FRAMES).map(frames_in_section).sum::<u64>()
    }

    /// Maps the descriptors of `range`, which consists of whole pageblocks. Descriptors that are
    /// mapped already keep their frames. Takes at most [`frames_needed`](Self::frames_needed)
    /// frames from `frame`.
    ///
    /// # Errors
    /// [`DescriptorMapError`]. Pages that were mapped before the error stay mapped.
    pub fn map_ram(
        &mut self,
        range: PfnRange,
        mut frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        for part in range.chunks(SECTION_FRAMES) {
            let pages = self.layout().pages_of(part);
            if let Some(own_frames) = self.layout().own_descriptor_frames(part) {
                self.map(pages.start, own_frames, &mut frame)?;
            } else if !self.is_large(pages.start) {
                for page in pages {
                    if self.frame(page).is_some() {
                        continue;
                    }
                    let backing = frame().ok_or(DescriptorMapError::NoFrame(page))?;
                    let backing = PfnRange::with_len(backing, 1).unwrap_or(PfnRange::EMPTY);
                    self.map(page, backing, &mut frame)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the pages of the map to unmap when `range` is removed: those that hold the
    /// descriptors of `range`. If `range` contains the first frame of its last section, and that
    /// section holds its own descriptors, also all other pages of that section.
    #[must_use]
    pub fn pages_to_unmap(&self, range: PfnRange) -> Range<u64> {
        let pages = self.layout().pages_of(range);
        let Some(last) = range.end().number().checked_sub(1).and_then(Pfn::new) else {
            return pages;
        };
        let section = PfnRange::with_len(last.align_down(SECTION_FRAMES), SECTION_FRAMES);
        let section = section.filter(|section| range.contains(section.start()));
        match section.map(|section| self.layout().pages_of(section)) {
            Some(section_pages) if self.is_large(section_pages.start) => {
                pages.start..section_pages.end
            }
            _ => pages,
        }
    }

    /// Unmaps the descriptors of `range`. Passes to `free` the frames that held the descriptors,
    /// except frames of `range` itself, and the tables that map nothing any more.
    pub fn unmap_ram(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let free = RefCell::new(free);
        let pages = self.pages_to_unmap(range);
        let free_others = |frames: PfnRange, _| {
            let outside = frames.chunks(1).map(PfnRange::start);
            let outside = outside.filter(|&frame| !range.contains(frame));
            outside.for_each(|frame| (free.borrow_mut())(frame));
        };
        self.unmap(pages, free_others, |table| (free.borrow_mut())(table));
    }
}
