//! The descriptor map: an array in virtual memory that has room for a descriptor of every frame
//! there can be, and frames behind those parts of it that describe something.
//!
//! A frame of its own lies behind each page, a run of 2 MiB behind 512 of them at once where they
//! are aligned alike, or one frame of shared tails, read-only, behind many.
//!
//! What is unmapped shows only after the TLB is flushed, which the caller is asked to do in time.

#[cfg(test)]
mod tests;

use crate::direct_map::DIRECT_MAP_BYTES;
use crate::tables::{FrameTables, SpareTables};
use crate::to_usize;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::Release;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Pfn, PfnRange};
use hotmem_pgtable::{Flags, Tables, entry_at};

/// Where the descriptor of frame 0 would be: aligned to the descriptors of any compound.
pub const DESCRIPTOR_MAP_BASE: u64 = 0xffff_f400_0000_0000;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 64;
/// Pages of the map: room for all that the direct map has room for.
pub const PAGES: u64 = DIRECT_MAP_BYTES / FRAME_SIZE * DESCRIPTOR_BYTES / FRAME_SIZE;

const ENTRIES: u64 = hotmem_pgtable::ENTRIES as u64;
const PRESENT: u64 = Flags::PRESENT.bits();
const WRITABLE: u64 = Flags::WRITABLE.bits();
/// Set from the start so that no access has to set them.
const USED: u64 = Flags::USED.bits();
const LARGE_PAGE: u64 = Flags::LARGE.bits();
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Frames behind a large page.
const LARGE_FRAMES: u64 = ENTRIES;

/// What may be done with a page of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Its frame is its own.
    Write,
    /// Others show the same frame.
    Read,
}

/// Why pages were not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The map has no such page.
    NoSuchPage(u64),
    /// There is something behind the page.
    Taken(u64),
    /// There was no frame for a table.
    NoTable(u64),
}

/// The page tables of the map. Pages are numbered from its base.
pub struct DescriptorMap {
    root: Pfn,
    tables: FrameTables,
}

/// The pages that hold the descriptors of `range`; shared with those of its neighbours, unless it
/// is a multiple of pageblocks.
#[must_use]
pub fn pages_of(range: PfnRange) -> Range<u64> {
    let byte = |pfn: Pfn| pfn.number() * DESCRIPTOR_BYTES;
    byte(range.start()) / FRAME_SIZE..byte(range.end()).div_ceil(FRAME_SIZE)
}

impl DescriptorMap {
    /// The map within the page tables at `root`, whose entries for it nobody else changes.
    #[must_use]
    pub const fn new(tables: FrameTables, root: Pfn) -> Self {
        DescriptorMap { root, tables }
    }

    /// Puts these frames behind the pages from `page` on, and makes the tables that are missing.
    ///
    /// # Errors
    /// [`MapError`]. What was mapped so far stays mapped.
    pub fn map(
        &mut self,
        mut page: u64,
        mut frames: PfnRange,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), MapError> {
        while !frames.is_empty() {
            let alike = page.is_multiple_of(ENTRIES) && frames.start().is_aligned(LARGE_FRAMES);
            let large = alike && frames.frames() >= LARGE_FRAMES;
            let level = u32::from(large);
            let table = self.make_table(page, level, &mut table_frame)?;
            let each = if large { LARGE_FRAMES } else { 1 };
            let first = index(page, level);
            let entries = (frames.frames() / each).min(ENTRIES - first);
            let flags = if large { PRESENT | WRITABLE | USED | LARGE_PAGE } else { TABLE };
            for entry in 0..entries {
                let address = frames.start().phys_addr() + entry * each * FRAME_SIZE;
                self.fill(table, page + entry * each, level, address | flags)?;
            }
            let done = frames.start().checked_add(entries * each).unwrap_or(Pfn::LIMIT);
            frames = frames.split_at(done).1;
            page += entries * each;
        }
        Ok(())
    }

    /// Puts a frame behind each of these pages.
    ///
    /// # Errors
    /// As for [`DescriptorMap::map`].
    pub fn map_each(
        &mut self,
        pages: impl Iterator<Item = (u64, Pfn, Access)>,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), MapError> {
        let mut last = None;
        for (page, frame, access) in pages {
            let table = match last {
                Some((of, table)) if of == page / ENTRIES => table,
                _ => self.make_table(page, 0, &mut table_frame)?,
            };
            last = Some((page / ENTRIES, table));
            let flags = if access == Access::Write { TABLE } else { TABLE & !WRITABLE };
            self.fill(table, page, 0, frame.phys_addr() | flags)?;
        }
        Ok(())
    }

    /// Takes these pages away, and gives the frames behind them to `each`, runs of them at once,
    /// and the tables that served nothing else to `table`. Neither can be seen any more by then.
    pub fn unmap(
        &mut self,
        pages: Range<u64>,
        mut flush: impl FnMut(),
        mut each: impl FnMut(PfnRange, Access),
        mut table: impl FnMut(Pfn),
    ) {
        self.change(pages.clone(), |entry| entry & !PRESENT);
        flush();
        let mut run = (PfnRange::EMPTY, Access::Read);
        self.change(pages.clone(), |entry| {
            let (frames, access) = (frames_of(entry), access_of(entry));
            let goes_on = run.1 == access && run.0.end() == frames.start();
            match PfnRange::new(run.0.start(), frames.end()).filter(|_| goes_on) {
                Some(longer) => run.0 = longer,
                None => {
                    let (frames, access) = core::mem::replace(&mut run, (frames, access));
                    if !frames.is_empty() {
                        each(frames, access);
                    }
                }
            }
            0
        });
        if !run.0.is_empty() {
            each(run.0, run.1);
        }
        let mut released = SpareTables::new(self.tables);
        (0..3).for_each(|level| self.unlink_tables(&pages, level, &mut released));
        flush();
        while let Some(unlinked) = released.pop() {
            table(unlinked);
        }
    }

    /// Takes these pages from sight and remembers what is behind them; large ones only if all of
    /// theirs are among them.
    pub fn hide(&mut self, pages: Range<u64>) {
        self.change(pages, |entry| entry & !PRESENT);
    }

    /// Shows what [`DescriptorMap::hide`] has hidden.
    pub fn show(&mut self, pages: Range<u64>) {
        self.change(pages, |entry| entry | PRESENT);
    }

    /// Whether the page is a part of a large one, hidden or not.
    #[must_use]
    pub fn is_large(&self, page: u64) -> bool {
        let directory = self.table(page, 1);
        directory.is_some_and(|table| self.read(table, index(page, 1)) & LARGE_PAGE != 0)
    }

    /// The frame behind a page, and what may be done with it.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<(Pfn, Access)> {
        let (level, table) = match self.table(page, 0) {
            Some(table) => (0, table),
            None => (1, self.table(page, 1)?),
        };
        let entry = self.read(table, index(page, level));
        let offset = if level == 0 { 0 } else { page % ENTRIES };
        let frame = frames_of(entry).start().checked_add(offset)?;
        (entry & PRESENT != 0).then_some((frame, access_of(entry)))
    }

    /// Changes every entry that maps some of these pages; those of large pages only if all of
    /// theirs are among them.
    fn change(&mut self, pages: Range<u64>, mut change: impl FnMut(u64) -> u64) {
        let mut change_at = |map: &mut Self, table, index| {
            let entry = map.read(table, index);
            if entry != 0 {
                map.write(table, index, change(entry));
            }
        };
        let mut page = pages.start;
        while page < pages.end {
            let end = next_multiple(page, ENTRIES).min(pages.end);
            if let Some(table) = self.table(page, 0) {
                (page..end).for_each(|page| change_at(self, table, index(page, 0)));
            } else if let Some(directory) = self.table(page, 1) {
                if end - page == LARGE_FRAMES {
                    change_at(self, directory, index(page, 1));
                }
            } else {
                page = next_multiple(page, ENTRIES * ENTRIES);
                continue;
            }
            page = end;
        }
    }

    /// Takes the tables of a level away that serve these pages, and nobody any more.
    fn unlink_tables(&mut self, pages: &Range<u64>, level: u32, released: &mut SpareTables) {
        let covered = 1 << (9 * (level + 1));
        let mut page = pages.start;
        while page < pages.end {
            if let (Some(table), Some(above)) =
                (self.table(page, level), self.table(page, level + 1))
                && (0..ENTRIES).all(|index| self.read(table, index) == 0)
            {
                self.write(above, index(page, level + 1), 0);
                released.push(table);
            }
            page = next_multiple(page, covered);
        }
    }

    /// Writes the entry of a page, which must be empty.
    fn fill(&mut self, table: Pfn, page: u64, level: u32, entry: u64) -> Result<(), MapError> {
        let index = index(page, level);
        if self.read(table, index) != 0 {
            return Err(MapError::Taken(page));
        }
        self.write(table, index, entry);
        Ok(())
    }

    /// The table of a level that has the page's entry, made if it is missing.
    fn make_table(
        &mut self,
        page: u64,
        level: u32,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<Pfn, MapError> {
        if page >= PAGES {
            return Err(MapError::NoSuchPage(page));
        }
        let mut table = self.root;
        for above in (level + 1..4).rev() {
            let entry = self.read(table, index(page, above));
            table = if entry == 0 {
                let new = table_frame().ok_or(MapError::NoTable(page))?;
                (0..ENTRIES).for_each(|index| self.write(new, index, 0));
                self.write(table, index(page, above), new.phys_addr() | TABLE);
                new
            } else {
                next_table(entry).ok_or(MapError::Taken(page))?
            };
        }
        Ok(table)
    }

    /// The table of a level that has the page's entry.
    fn table(&self, page: u64, level: u32) -> Option<Pfn> {
        let mut table = Some(self.root).filter(|_| page < PAGES)?;
        for above in (level + 1..4).rev() {
            table = next_table(self.read(table, index(page, above)))?;
        }
        Some(table)
    }

    fn read(&self, table: Pfn, index: u64) -> u64 {
        self.tables.table(table).map_or(0, |table| entry_at(table, to_usize(index)).bits())
    }

    fn write(&mut self, table: Pfn, index: u64, entry: u64) {
        if let Some(table) = self.tables.table(table) {
            // Release: with the walker's dependent reads, it sees a new table empty.
            table[to_usize(index)].store(entry, Release);
        }
    }
}

const TABLE: u64 = PRESENT | WRITABLE | USED;

/// The page's place in a table of a level: 3 is the root.
fn index(page: u64, level: u32) -> u64 {
    (DESCRIPTOR_MAP_BASE / FRAME_SIZE + page) >> (9 * level) & (ENTRIES - 1)
}

fn next_table(entry: u64) -> Option<Pfn> {
    let is_table = entry & PRESENT != 0 && entry & LARGE_PAGE == 0;
    Pfn::containing(entry & ADDRESS).filter(|_| is_table)
}

/// The frames of an entry that maps a page, hidden or not.
fn frames_of(entry: u64) -> PfnRange {
    let frames = if entry & LARGE_PAGE != 0 { LARGE_FRAMES } else { 1 };
    let first = Pfn::containing(entry & ADDRESS);
    first.and_then(|first| PfnRange::with_len(first, frames)).unwrap_or(PfnRange::EMPTY)
}

fn access_of(entry: u64) -> Access {
    if entry & WRITABLE != 0 { Access::Write } else { Access::Read }
}

/// The first multiple of `of`, a power of two, behind `page`.
fn next_multiple(page: u64, of: u64) -> u64 {
    (page | (of - 1)) + 1
}

impl MapError {
    /// The first page that was not mapped.
    #[must_use]
    pub const fn page(self) -> u64 {
        let (MapError::NoSuchPage(page) | MapError::Taken(page) | MapError::NoTable(page)) = self;
        page
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.page().saturating_mul(FRAME_SIZE / DESCRIPTOR_BYTES * FRAME_SIZE);
        match self {
            MapError::NoSuchPage(_) => write!(f, "the descriptor map ends before {at:#x}"),
            MapError::Taken(_) => write!(f, "memory at {at:#x} has descriptors already"),
            MapError::NoTable(_) => write!(f, "no frame for the descriptor map at {at:#x}"),
        }
    }
}

impl core::error::Error for MapError {}
