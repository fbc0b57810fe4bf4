//! The descriptor map (Linux: vmemmap): an array in virtual memory with an element for the
//! descriptor of every possible frame. Only the parts that describe existing frames are mapped.
//!
//! A page of the map is backed in one of three ways: by a frame that backs no other page; as a part
//! of a large page, by 512 contiguous frames; or read-only, by a frame of shared tails that also
//! backs other pages.
//!
//! Mapping publishes the new entries, and unmapping flushes the TLBs. [`DescriptorMap::hide`] leaves
//! the flush to the caller.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the map: mapping, unmapping and hiding pages |
//! | `layout.rs` | which pages hold the descriptors of a range |
//! | `page.rs` | the access and the frames of an entry |
//! | `entries.rs` | reading and writing entries, adding and unlinking tables |
//! | `error.rs` | the errors of mapping pages |

mod entries;
mod error;
mod layout;
mod page;
mod place;
#[cfg(test)]
mod tests;

pub use error::DescriptorMapError;
pub use layout::{BadDescriptorSize, DescriptorLayout};
pub use page::Access;
pub(crate) use page::PAGES_PER_L1_TABLE;

use crate::flush::flush_all;
use crate::tables::SpareTables;
use core::ops::Range;
use hotmem_addr::geometry::FRAME_SIZE;
use hotmem_addr::{Bytes, Pfn, PfnRange};
use hotmem_pgtable::{
    Attributes, ENTRIES, Entry, Flush, Flusher, Format, Kind, Level, LocatedEntry, Space, Tables,
    VirtRange,
};
use page::{LARGE_FRAMES, access_of, frames_of};
use place::set_if_empty;

/// The page tables of the map. Pages are numbered from its base.
pub struct DescriptorMap<T, F: Flusher> {
    tables: T,
    space: Space<F::Format>,
    layout: DescriptorLayout,
    flusher: F,
    /// The attributes of every page, except its access.
    attributes: Attributes,
}

impl<T: Tables + Copy, F: Flusher + Copy> DescriptorMap<T, F> {
    /// Returns the map with this layout, in the page tables whose root table is the frame `root`.
    #[must_use]
    pub fn new(tables: T, root: Pfn, layout: DescriptorLayout, flusher: F) -> Self {
        let (space, attributes) = (layout.area.space(root), Attributes::KERNEL_DATA);
        DescriptorMap { tables, space, layout, flusher, attributes }
    }

    /// Sets the attributes of the pages that are mapped from now on, except whether they can be
    /// written, which their [access](Access) decides. The default is [`Attributes::KERNEL_DATA`]. On
    /// x86-64, it needs no-execute pages, which the processor must support and the kernel must have
    /// enabled (`EFER.NXE`); a kernel without them makes the pages executable.
    #[must_use]
    pub fn with_attributes(self, attributes: Attributes) -> Self {
        DescriptorMap { attributes, ..self }
    }

    /// Returns the layout of the map.
    #[must_use]
    pub const fn layout(&self) -> &DescriptorLayout {
        &self.layout
    }

    /// Maps `frames` at the pages from `page` on. Takes frames for missing tables from
    /// `table_frame`.
    ///
    /// # Errors
    /// [`DescriptorMapError`]. Pages that were mapped before the error stay mapped.
    pub fn map(
        &mut self,
        page: u64,
        frames: PfnRange,
        table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        let mapped = self.map_unpublished(page, frames, table_frame);
        self.publish(page..page.saturating_add(frames.frames()));
        mapped
    }

    fn map_unpublished(
        &mut self,
        mut page: u64,
        mut frames: PfnRange,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        let tables = self.tables;
        while !frames.is_empty() {
            let is_aligned = page.is_multiple_of(PAGES_PER_L1_TABLE)
                && frames.start().number().is_multiple_of(LARGE_FRAMES);
            let (level, step) = if is_aligned && frames.frames() >= LARGE_FRAMES {
                (Level::L2, LARGE_FRAMES)
            } else {
                (Level::L1, 1)
            };
            let first = self.get_or_make_entry(page, level, &mut table_frame)?;
            let entries = usize::try_from(frames.frames() / step).unwrap_or(ENTRIES);
            let table = tables.table(first.table()).ok_or(DescriptorMapError::NoSuchPage(page))?;
            for place in table[first.index()..].iter().take(entries) {
                let frame = frames.start();
                set_if_empty(place, page, self.page_entry(frame, level, Access::Write))?;
                frames = frames.split_at(frame.checked_add(step).unwrap_or(Pfn::LIMIT)).1;
                page += step;
            }
        }
        Ok(())
    }

    /// Maps all of `pages` to one frame, which is only read: that of shared tails. Takes frames for
    /// missing tables from `table_frame`.
    ///
    /// # Errors
    /// As for [`DescriptorMap::map`].
    pub fn map_shared(
        &mut self,
        pages: Range<u64>,
        frame: Pfn,
        table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        let mapped = self.map_shared_unpublished(pages.clone(), frame, table_frame);
        self.publish(pages);
        mapped
    }

    fn map_shared_unpublished(
        &mut self,
        mut pages: Range<u64>,
        frame: Pfn,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        let (tables, entry) = (self.tables, self.page_entry(frame, Level::L1, Access::Read));
        while !pages.is_empty() {
            let first = self.get_or_make_entry(pages.start, Level::L1, &mut table_frame)?;
            let no_such_page = DescriptorMapError::NoSuchPage(pages.start);
            let table = tables.table(first.table()).ok_or(no_such_page)?;
            for (place, page) in table[first.index()..].iter().zip(&mut pages) {
                set_if_empty(place, page, entry)?;
            }
        }
        Ok(())
    }

    /// Unmaps `pages`. After a flush, passes the frames that backed the pages to `unmapped`, in runs.
    /// After a second flush, passes the tables that map nothing any more to `free_table`.
    pub fn unmap(
        &mut self,
        pages: Range<u64>,
        mut unmapped: impl FnMut(PfnRange, Access),
        mut free_table: impl FnMut(Pfn),
    ) {
        self.change(pages.clone(), |entry, _| entry.with_presence(false));
        self.flush(&pages, false);
        let mut run = (PfnRange::EMPTY, Access::Read);
        self.change(pages.clone(), |entry, level| {
            let (frames, access) = (frames_of(entry, level), access_of(entry));
            let extends_run = run.1 == access && run.0.end() == frames.start();
            match PfnRange::new(run.0.start(), frames.end()).filter(|_| extends_run) {
                Some(longer) => run.0 = longer,
                None => {
                    let (frames, access) = core::mem::replace(&mut run, (frames, access));
                    if !frames.is_empty() {
                        unmapped(frames, access);
                    }
                }
            }
            Entry::EMPTY
        });
        if !run.0.is_empty() {
            unmapped(run.0, run.1);
        }
        let mut released = SpareTables::new(self.tables);
        for (level, level_above) in
            [(Level::L1, Level::L2), (Level::L2, Level::L3), (Level::L3, Level::L4)]
        {
            self.unlink_tables(&pages, level, level_above, &mut released);
        }
        self.flush(&pages, true);
        while let Some(table) = released.pop() {
            free_table(table);
        }
    }

    /// Makes `pages` not present, but keeps their frames in the entries. A large page is hidden only
    /// if `pages` covers that whole page.
    pub fn hide(&mut self, pages: Range<u64>) {
        self.change(pages, |entry, _| entry.with_presence(false));
    }

    /// Makes the pages that [`DescriptorMap::hide`] has hidden present again.
    pub fn show(&mut self, pages: Range<u64>) {
        self.change(pages.clone(), |entry, _| entry.with_presence(true));
        self.publish(pages);
    }

    /// Returns whether the page is a part of a large page, even if that large page is hidden.
    #[must_use]
    pub fn is_large(&self, page: u64) -> bool {
        let located = self.entry_on_level(page, Level::L2);
        located.is_some_and(|LocatedEntry { entry, level, .. }| {
            !entry.is_empty() && entry.with_presence(true).kind(level) == Kind::Page
        })
    }

    /// Returns the entry of a page.
    fn page_entry(&self, frame: Pfn, level: Level, access: Access) -> Entry<F::Format> {
        let attributes = Attributes { writable: access == Access::Write, ..self.attributes };
        Entry::new(frame, F::Format::page_flags(attributes, level))
    }

    /// Publishes the entries of `pages`.
    fn publish(&mut self, pages: Range<u64>) {
        if let Some(range) = self.virt_range(&pages) {
            self.flusher.publish(range);
        }
    }

    fn flush(&mut self, pages: &Range<u64>, tables: bool) {
        if let Some(range) = self.virt_range(pages) {
            flush_all(&mut self.flusher, Flush { range, tables });
        }
    }

    /// Returns the addresses of those of `pages` that lie in the map, or `None` if there are none.
    fn virt_range(&self, pages: &Range<u64>) -> Option<VirtRange> {
        let count = pages.end.min(self.layout.pages()).checked_sub(pages.start)?;
        let start = self.layout.area.address(pages.start.checked_mul(FRAME_SIZE)?)?;
        VirtRange::new(start, Bytes(count * FRAME_SIZE)).ok()
    }

    /// Returns the frame that backs a page, and how the page may be accessed. Returns `None` if the
    /// page is not mapped or hidden.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<(Pfn, Access)> {
        let LocatedEntry { entry, level, .. } = self.leaf_entry(page)?;
        let offset = if level == Level::L1 { 0 } else { page % PAGES_PER_L1_TABLE };
        let frame = frames_of(entry, level).start().checked_add(offset)?;
        entry.is_present().then_some((frame, access_of(entry)))
    }
}
