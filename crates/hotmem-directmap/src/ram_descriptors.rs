//! Descriptors of RAM: which frames hold them.
//!
//! Where the descriptors of a section fill whole large pages of the map (those of 64 bytes fill one
//! of 2 MiB), a section that is added as a whole has them in its own first pageblocks, behind large
//! pages of the map. What is added in smaller parts has them in frames of other memory. A part of a
//! section that is added again while its first pageblocks have stayed finds its descriptors there.

#[cfg(test)]
mod tests;

use crate::descriptor_map::{
    Access, DescriptorLayout, DescriptorMap, DescriptorMapError, IN_TABLE,
};
use core::cell::RefCell;
use core::ops::Range;
use hotmem_addr::geometry::SECTION_FRAMES;
use hotmem_addr::{Pfn, PfnRange};
use hotmem_pgtable::Tables;

/// Pages of the map that one of its tables has entries for, above the lowest level.
const IN_DIRECTORY: u64 = IN_TABLE * IN_TABLE;
const IN_POINTER_TABLE: u64 = IN_TABLE * IN_DIRECTORY;

const SECTION: u64 = SECTION_FRAMES as u64;

impl DescriptorLayout {
    /// Frames that each whole section keeps for its own descriptors, the first of it; 0 if they
    /// fill no whole large page.
    #[must_use]
    pub fn frames_kept(&self) -> u64 {
        let pages = self.pages_of(PfnRange::with_len(Pfn::ZERO, SECTION).unwrap_or_default());
        if pages.end.is_multiple_of(IN_TABLE) { pages.end } else { 0 }
    }

    /// The frames at the start of a part of a section that hold the descriptors of the section;
    /// `None` if it is no whole section or its descriptors lie elsewhere.
    fn kept(&self, part: PfnRange) -> Option<PfnRange> {
        let kept = Some(self.frames_kept()).filter(|&kept| kept > 0)?;
        (part.frames() == SECTION).then_some(PfnRange::with_len(part.start(), kept)?)
    }
}

impl<T: Tables + Copy> DescriptorMap<T> {
    /// The most frames that [`map_ram`](Self::map_ram) takes for `range`, tables included.
    #[must_use]
    pub fn frames_needed(&self, range: PfnRange) -> u64 {
        let tables =
            |pages: &Range<u64>, covered: u64| pages.end.div_ceil(covered) - pages.start / covered;
        let lower = |part: PfnRange| {
            let pages = self.layout().pages_of(part);
            if self.layout().kept(part).is_some() || self.is_large(pages.start) {
                return 0;
            }
            pages.end - pages.start + tables(&pages, IN_TABLE)
        };
        let pages = self.layout().pages_of(range);
        let upper = tables(&pages, IN_DIRECTORY) + tables(&pages, IN_POINTER_TABLE);
        upper + range.sections().map(lower).sum::<u64>()
    }

    /// Puts frames behind the descriptors of `range`, whole pageblocks. Descriptors that have frames
    /// keep them. Takes no more from `frame` than [`frames_needed`](Self::frames_needed) says.
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

    /// The pages of the map that go with `range`: those of what it describes, and all of a
    /// section's where it is the last of a section that holds its own descriptors.
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

    /// Takes the descriptors of `range` away. Frames that held them and are none of `range` itself,
    /// and tables that served nothing else, go to `free`.
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
