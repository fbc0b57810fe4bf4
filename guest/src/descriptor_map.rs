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
use hotmem_pgtable::{
    Entry, EntryAddr, Flags, Flush, Level, Native, Slot, Space, Tables, entry_at, slot_from,
};

/// Where the descriptor of frame 0 would be: aligned to the descriptors of any compound.
pub const DESCRIPTOR_MAP_BASE: u64 = 0xffff_f400_0000_0000;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 64;
/// Pages of the map: room for all that the direct map has room for.
pub const PAGES: u64 = DIRECT_MAP_BYTES / FRAME_SIZE * DESCRIPTOR_BYTES / FRAME_SIZE;

const ENTRIES: u64 = hotmem_pgtable::ENTRIES as u64;
/// Frames behind a large page.
const LARGE_FRAMES: u64 = ENTRIES;

/// A frame that others show too. Accessed and Dirty are set from the start so that no access has to
/// set them.
const SHARED: Flags = Flags::PRESENT.union(Flags::USED);
/// A page's own frame, or a table.
const OWN: Flags = SHARED.union(Flags::WRITABLE);

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
    tables: FrameTables,
    space: Space,
}

/// The pages that hold the descriptors of `range`; shared with those of its neighbours, unless it
/// is a multiple of pageblocks.
#[must_use]
pub fn pages_of(range: PfnRange) -> Range<u64> {
    let byte = |pfn: Pfn| pfn.number() * DESCRIPTOR_BYTES;
    byte(range.start()) / FRAME_SIZE..byte(range.end()).div_ceil(FRAME_SIZE)
}

impl DescriptorMap {
    /// The map within `space`, whose entries for it nobody else changes.
    #[must_use]
    pub const fn new(tables: FrameTables, space: Space) -> Self {
        DescriptorMap { tables, space }
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
            let (level, each, flags) = if alike && frames.frames() >= LARGE_FRAMES {
                (Level::L2, LARGE_FRAMES, OWN | Flags::LARGE)
            } else {
                (Level::L1, 1, OWN)
            };
            let first = self.make_table(page, level, &mut table_frame)?;
            let entries = (frames.frames() / each).min(ENTRIES - first.index() as u64);
            for entry in 0..entries {
                let at = EntryAddr::new(first.table(), first.index() + to_usize(entry));
                let frame = frames.start();
                self.fill(at, page, Entry::new(frame, flags))?;
                frames = frames.split_at(frame.checked_add(each).unwrap_or(Pfn::LIMIT)).1;
                page += each;
            }
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
                _ => self.make_table(page, Level::L1, &mut table_frame)?.table(),
            };
            last = Some((page / ENTRIES, table));
            let flags = if access == Access::Write { OWN } else { SHARED };
            let at = EntryAddr::new(table, to_usize(page % ENTRIES));
            self.fill(at, page, Entry::new(frame, flags))?;
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
        self.change(pages.clone(), |entry, _| without(entry, Flags::PRESENT));
        flush();
        let mut run = (PfnRange::EMPTY, Access::Read);
        self.change(pages.clone(), |entry, level| {
            let (frames, access) = (frames_of(entry, level), access_of(entry));
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
            Entry::EMPTY
        });
        if !run.0.is_empty() {
            each(run.0, run.1);
        }
        let mut released = SpareTables::new(self.tables);
        for (level, above) in
            [(Level::L1, Level::L2), (Level::L2, Level::L3), (Level::L3, Level::L4)]
        {
            self.unlink_tables(&pages, level, above, &mut released);
        }
        flush();
        while let Some(unlinked) = released.pop() {
            table(unlinked);
        }
    }

    /// Takes these pages from sight and remembers what is behind them; large ones only if all of
    /// theirs are among them.
    pub fn hide(&mut self, pages: Range<u64>) {
        self.change(pages, |entry, _| without(entry, Flags::PRESENT));
    }

    /// Shows what [`DescriptorMap::hide`] has hidden.
    pub fn show(&mut self, pages: Range<u64>) {
        self.change(pages, |entry, _| entry.with(Flags::PRESENT));
    }

    /// Whether the page is a part of a large one, hidden or not.
    #[must_use]
    pub fn is_large(&self, page: u64) -> bool {
        let slot = self.slot(page, Level::L2);
        slot.is_some_and(|slot| slot.entry.flags().contains(Flags::LARGE))
    }

    /// The frame behind a page, and what may be done with it.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<(Pfn, Access)> {
        let Slot { entry, level, .. } = self.lowest(page)?;
        let offset = if level == Level::L1 { 0 } else { page % ENTRIES };
        let frame = frames_of(entry, level).start().checked_add(offset)?;
        entry.is_present().then_some((frame, access_of(entry)))
    }

    /// Changes every entry that maps some of these pages; those of large pages only if all of
    /// theirs are among them.
    fn change(&mut self, pages: Range<u64>, mut change: impl FnMut(Entry, Level) -> Entry) {
        let mut page = pages.start;
        while page < pages.end {
            let end = next_multiple(page, ENTRIES).min(pages.end);
            let Some(Slot { at, level, .. }) = self.lowest(page) else {
                page = next_multiple(page, ENTRIES * ENTRIES);
                continue;
            };
            let entries = match level {
                Level::L1 => end - page,
                _ => (end - page) / LARGE_FRAMES,
            };
            for index in (at.index()..).take(to_usize(entries)) {
                let at = EntryAddr::new(at.table(), index);
                let entry = self.read(at);
                if entry.bits() != 0 {
                    self.write(at, change(entry, level));
                }
            }
            page = end;
        }
    }

    /// Takes the tables of a level away that serve these pages, and nobody any more.
    fn unlink_tables(
        &mut self,
        pages: &Range<u64>,
        level: Level,
        above: Level,
        released: &mut SpareTables,
    ) {
        let mut page = pages.start;
        while page < pages.end {
            if let (Some(slot), Some(above)) = (self.slot(page, level), self.slot(page, above)) {
                let table = slot.at.table();
                let entry = |index| self.read(EntryAddr::new(table, index));
                if (0..to_usize(ENTRIES)).all(|index| entry(index).bits() == 0) {
                    self.write(above.at, Entry::EMPTY);
                    released.push(table);
                }
            }
            page = next_multiple(page, level.table_bytes().frames());
        }
    }

    /// Writes the entry of a page, which must be empty.
    fn fill(&mut self, at: EntryAddr, page: u64, entry: Entry) -> Result<(), MapError> {
        if self.read(at).bits() != 0 {
            return Err(MapError::Taken(page));
        }
        self.write(at, entry);
        Ok(())
    }

    /// The page's entry on a level, in a table that is made if it is missing.
    fn make_table(
        &mut self,
        page: u64,
        level: Level,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<EntryAddr, MapError> {
        loop {
            let slot = self.walk(page, level).ok_or(MapError::NoSuchPage(page))?;
            if slot.level == level {
                return Ok(slot.at);
            }
            if slot.entry.bits() != 0 {
                return Err(MapError::Taken(page));
            }
            let table = table_frame().ok_or(MapError::NoTable(page))?;
            for index in 0..to_usize(ENTRIES) {
                self.write(EntryAddr::new(table, index), Entry::EMPTY);
            }
            self.write(slot.at, Entry::new(table, OWN));
        }
    }

    /// The entry that maps a page, or would.
    fn lowest(&self, page: u64) -> Option<Slot> {
        self.walk(page, Level::L1).filter(|slot| slot.level <= Level::L2)
    }

    /// The page's entry on a level, if there is a table.
    fn slot(&self, page: u64, level: Level) -> Option<Slot> {
        self.walk(page, level).filter(|slot| slot.level == level)
    }

    /// The page's entry on a level, or above it where tables end.
    fn walk(&self, page: u64, level: Level) -> Option<Slot> {
        let page = Some(page).filter(|&page| page < PAGES)?;
        let native = Native::new(self.tables, |_: Flush| {});
        slot_from(&native, self.space, DESCRIPTOR_MAP_BASE + page * FRAME_SIZE, level).ok()
    }

    fn read(&self, at: EntryAddr) -> Entry {
        let table = self.tables.table(at.table());
        table.map_or(Entry::EMPTY, |table| entry_at(table, at.index()))
    }

    fn write(&mut self, at: EntryAddr, entry: Entry) {
        if let Some(table) = self.tables.table(at.table()) {
            // Release: with the walker's dependent reads, it sees a new table empty.
            table[at.index()].store(entry.bits(), Release);
        }
    }
}

fn without(entry: Entry, flags: Flags) -> Entry {
    Entry::from_bits(entry.bits() & !flags.bits())
}

/// The frames of an entry that maps a page, hidden or not.
fn frames_of(entry: Entry, level: Level) -> PfnRange {
    let first = entry.with(Flags::PRESENT).frame(level);
    let frames = level.entry_bytes().frames();
    first.and_then(|first| PfnRange::with_len(first, frames)).unwrap_or(PfnRange::EMPTY)
}

fn access_of(entry: Entry) -> Access {
    if entry.flags().contains(Flags::WRITABLE) { Access::Write } else { Access::Read }
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
