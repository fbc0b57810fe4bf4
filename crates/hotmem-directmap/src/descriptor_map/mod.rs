//! The descriptor map (Linux: vmemmap): an array in virtual memory with an element for the
//! descriptor of every possible frame. Only the parts that describe existing frames are mapped.
//!
//! A page of the map is backed in one of three ways: by a frame that backs no other page; as a part
//! of a large page, by 512 contiguous frames; or read-only, by a frame of shared tails that also
//! backs other pages.
//!
//! Unmapping takes effect only after a TLB flush. The caller passes the function that flushes.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the map: mapping, unmapping and hiding pages |
//! | `layout.rs` | which pages hold the descriptors of a range |
//! | `page.rs` | the flags and frames of an entry |
//! | `entries.rs` | reading and writing entries, adding and unlinking tables |
//! | `error.rs` | the errors of mapping pages |

mod entries;
mod error;
mod layout;
mod page;
#[cfg(test)]
mod tests;

pub use error::DescriptorMapError;
pub use layout::{BadDescriptorSize, DescriptorLayout};
pub use page::Access;
pub(crate) use page::PAGES_PER_L1_TABLE;

use crate::tables::SpareTables;
use core::ops::Range;
use hotmem_addr::{Pfn, PfnRange};
use hotmem_pgtable::{ENTRIES, Entry, EntryAddr, Flags, Level, LocatedEntry, Space, Tables};
use page::{LARGE_FRAMES, SHARED, UNSHARED, access_of, frames_of, l1_index, without};

/// The page tables of the map. Pages are numbered from its base.
pub struct DescriptorMap<T> {
    tables: T,
    space: Space,
    layout: DescriptorLayout,
    /// The flags of every page, except those that its use decides.
    page_flags: Flags,
}

impl<T: Tables + Copy> DescriptorMap<T> {
    /// Returns the map with this layout, in the four-level page tables whose root table is the frame
    /// `root`.
    #[must_use]
    pub const fn new(tables: T, root: Pfn, layout: DescriptorLayout) -> Self {
        let page_flags = Flags::NO_EXECUTE;
        DescriptorMap { tables, space: Space::new(root, Level::L4), layout, page_flags }
    }

    /// Sets the flags of the pages that are mapped from now on, except those for presence, size and
    /// [access](Access): for example [`Flags::GLOBAL`]. The default is [`Flags::NO_EXECUTE`], which
    /// the processor must support and the kernel must have enabled (`EFER.NXE`); a kernel without
    /// it sets no flags.
    #[must_use]
    pub fn with_page_flags(self, flags: Flags) -> Self {
        DescriptorMap { page_flags: flags, ..self }
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
        mut page: u64,
        mut frames: PfnRange,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        while !frames.is_empty() {
            let is_aligned = page.is_multiple_of(PAGES_PER_L1_TABLE)
                && frames.start().number().is_multiple_of(LARGE_FRAMES);
            let (level, step, flags) = if is_aligned && frames.frames() >= LARGE_FRAMES {
                (Level::L2, LARGE_FRAMES, UNSHARED | Flags::LARGE)
            } else {
                (Level::L1, 1, UNSHARED)
            };
            let first = self.get_or_make_entry(page, level, &mut table_frame)?;
            let entries = usize::try_from(frames.frames() / step).unwrap_or(ENTRIES);
            for index in (first.index()..ENTRIES).take(entries) {
                let addr = EntryAddr::new(first.table(), index);
                let frame = frames.start();
                self.set_if_empty(addr, page, Entry::new(frame, flags | self.page_flags))?;
                frames = frames.split_at(frame.checked_add(step).unwrap_or(Pfn::LIMIT)).1;
                page += step;
            }
        }
        Ok(())
    }

    /// Maps each page of `pages` to its frame, with its access.
    ///
    /// # Errors
    /// As for [`DescriptorMap::map`].
    pub fn map_each(
        &mut self,
        pages: impl Iterator<Item = (u64, Pfn, Access)>,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        let mut last = None;
        for (page, frame, access) in pages {
            let table = match last {
                Some((number, table)) if number == page / PAGES_PER_L1_TABLE => table,
                _ => self.get_or_make_entry(page, Level::L1, &mut table_frame)?.table(),
            };
            last = Some((page / PAGES_PER_L1_TABLE, table));
            let flags = if access == Access::Write { UNSHARED } else { SHARED };
            let addr = EntryAddr::new(table, l1_index(page));
            self.set_if_empty(addr, page, Entry::new(frame, flags | self.page_flags))?;
        }
        Ok(())
    }

    /// Unmaps `pages`. After a flush, passes the frames that backed the pages to `unmapped`, in runs.
    /// After a second flush, passes the tables that map nothing any more to `free_table`.
    pub fn unmap(
        &mut self,
        pages: Range<u64>,
        mut flush: impl FnMut(),
        mut unmapped: impl FnMut(PfnRange, Access),
        mut free_table: impl FnMut(Pfn),
    ) {
        self.change(pages.clone(), |entry, _| without(entry, Flags::PRESENT));
        flush();
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
        flush();
        while let Some(table) = released.pop() {
            free_table(table);
        }
    }

    /// Makes `pages` not present, but keeps their frames in the entries. A large page is hidden only
    /// if `pages` covers that whole page.
    pub fn hide(&mut self, pages: Range<u64>) {
        self.change(pages, |entry, _| without(entry, Flags::PRESENT));
    }

    /// Makes the pages that [`DescriptorMap::hide`] has hidden present again.
    pub fn show(&mut self, pages: Range<u64>) {
        self.change(pages, |entry, _| entry.with(Flags::PRESENT));
    }

    /// Returns whether the page is a part of a large page, even if that large page is hidden.
    #[must_use]
    pub fn is_large(&self, page: u64) -> bool {
        let located = self.entry_on_level(page, Level::L2);
        located.is_some_and(|located| located.entry.flags().contains(Flags::LARGE))
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
