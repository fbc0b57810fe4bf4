//! The descriptor map (Linux: vmemmap): an array in virtual memory with room for a descriptor of
//! every possible frame. Only the parts that describe existing frames are mapped.
//!
//! A page of the map is backed in one of three ways: by a frame of its own; with 511 neighbours by
//! an aligned run of 2 MiB; or, read-only, by a frame of shared tails that also backs other pages.
//!
//! Unmapping takes effect only after a TLB flush, for which the map calls back.

#[cfg(test)]
mod tests;

use crate::area::Area;
use crate::tables::SpareTables;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::Release;
use hotmem_addr::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem_addr::{Bytes, Pfn, PfnRange};
use hotmem_pgtable::{
    ENTRIES, Entry, EntryAddr, Flags, Flush, Level, Native, Slot, Space, Tables, entry_at,
    slot_from,
};

/// Pages of the map that one L1 table maps.
pub(crate) const IN_TABLE: u64 = ENTRIES as u64;
/// Frames behind a large page.
const LARGE_FRAMES: u64 = IN_TABLE;

/// Flags of a page whose frame backs other pages too. Accessed and Dirty are set from the start so
/// that no access has to set them.
const SHARED: Flags = Flags::PRESENT.union(Flags::USED);
/// Flags of a page with a frame of its own, or of an entry for a table.
const OWN: Flags = SHARED.union(Flags::WRITABLE);

/// How a page of the map may be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read and written: its frame backs no other page.
    Write,
    /// Read only: its frame backs other pages too.
    Read,
}

/// The place of the descriptors and the size of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorLayout {
    area: Area,
    bytes: u64,
}

/// Descriptors of this many bytes are not supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorSize(pub Bytes);

/// The reason why pages were not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DescriptorMapError {
    /// The page lies beyond the end of the map.
    NoSuchPage(u64),
    /// The page is already mapped.
    Taken(u64),
    /// No frame was available for a table that maps the page.
    NoTable(u64),
}

/// The page tables of the map. Pages are numbered from its base.
pub struct DescriptorMap<T> {
    tables: T,
    space: Space,
    layout: DescriptorLayout,
}

impl DescriptorLayout {
    /// Lays out descriptors of `descriptor` bytes, with that of frame 0 at the start of `area`.
    ///
    /// # Errors
    /// [`DescriptorSize`] if they have no bytes or more than half a frame, or those of a pageblock
    /// do not fill whole frames.
    pub const fn new(area: Area, descriptor: Bytes) -> Result<DescriptorLayout, DescriptorSize> {
        let bytes = descriptor.0;
        let fills = (bytes % FRAME_SIZE * PAGEBLOCK_FRAMES as u64).is_multiple_of(FRAME_SIZE);
        if bytes == 0 || bytes > FRAME_SIZE / 2 || !fills {
            return Err(DescriptorSize(descriptor));
        }
        Ok(DescriptorLayout { area, bytes })
    }

    /// Returns the pages that hold the descriptors of `range`. Unless `range` consists of whole
    /// pageblocks, the first and the last page may hold descriptors of its neighbours too.
    #[must_use]
    pub fn pages_of(&self, range: PfnRange) -> Range<u64> {
        // At most 2^40 frames with descriptors of at most 2^11 bytes: this cannot wrap.
        let byte = |pfn: Pfn| pfn.number() * self.bytes;
        byte(range.start()) / FRAME_SIZE..byte(range.end()).div_ceil(FRAME_SIZE)
    }

    /// Returns how many pages there are.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.area.bytes().0 / FRAME_SIZE
    }
}

impl<T: Tables + Copy> DescriptorMap<T> {
    /// Returns the map with this layout, below a four-level root.
    #[must_use]
    pub const fn new(tables: T, root: Pfn, layout: DescriptorLayout) -> Self {
        DescriptorMap { tables, space: Space::new(root, Level::L4), layout }
    }

    /// Returns where descriptors lie.
    #[must_use]
    pub const fn layout(&self) -> &DescriptorLayout {
        &self.layout
    }

    /// Maps these frames at the pages from `page` on, and makes missing tables.
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
            let alike = page.is_multiple_of(IN_TABLE) && frames.start().is_aligned(LARGE_FRAMES);
            let (level, each, flags) = if alike && frames.frames() >= LARGE_FRAMES {
                (Level::L2, LARGE_FRAMES, OWN | Flags::LARGE)
            } else {
                (Level::L1, 1, OWN)
            };
            let first = self.make_table(page, level, &mut table_frame)?;
            let entries = usize::try_from(frames.frames() / each).unwrap_or(ENTRIES);
            for index in (first.index()..ENTRIES).take(entries) {
                let at = EntryAddr::new(first.table(), index);
                let frame = frames.start();
                self.fill(at, page, Entry::new(frame, flags))?;
                frames = frames.split_at(frame.checked_add(each).unwrap_or(Pfn::LIMIT)).1;
                page += each;
            }
        }
        Ok(())
    }

    /// Maps a frame at each of these pages.
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
                Some((of, table)) if of == page / IN_TABLE => table,
                _ => self.make_table(page, Level::L1, &mut table_frame)?.table(),
            };
            last = Some((page / IN_TABLE, table));
            let flags = if access == Access::Write { OWN } else { SHARED };
            let at = EntryAddr::new(table, index(page));
            self.fill(at, page, Entry::new(frame, flags))?;
        }
        Ok(())
    }

    /// Unmaps these pages. Passes the frames that backed them to `each`, in runs, and the tables
    /// that map nothing any more to `table`, in both cases after the flush.
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

    /// Makes these pages not present, but keeps their frames in the entries. A large page is hidden
    /// only if `pages` covers it.
    pub fn hide(&mut self, pages: Range<u64>) {
        self.change(pages, |entry, _| without(entry, Flags::PRESENT));
    }

    /// Makes pages present again that [`DescriptorMap::hide`] has hidden.
    pub fn show(&mut self, pages: Range<u64>) {
        self.change(pages, |entry, _| entry.with(Flags::PRESENT));
    }

    /// Returns whether the page is part of a large page, hidden or not.
    #[must_use]
    pub fn is_large(&self, page: u64) -> bool {
        let slot = self.slot(page, Level::L2);
        slot.is_some_and(|slot| slot.entry.flags().contains(Flags::LARGE))
    }

    /// Returns the frame that backs a page, and how it may be accessed.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<(Pfn, Access)> {
        let Slot { entry, level, .. } = self.lowest(page)?;
        let offset = if level == Level::L1 { 0 } else { page % IN_TABLE };
        let frame = frames_of(entry, level).start().checked_add(offset)?;
        entry.is_present().then_some((frame, access_of(entry)))
    }

    /// Changes every entry that maps some of these pages; the entry of a large page only if `pages`
    /// covers it.
    fn change(&mut self, pages: Range<u64>, mut change: impl FnMut(Entry, Level) -> Entry) {
        let mut page = pages.start;
        while page < pages.end {
            let end = next_multiple(page, IN_TABLE).min(pages.end);
            let Some(Slot { at, level, .. }) = self.lowest(page) else {
                page = next_multiple(page, IN_TABLE * IN_TABLE);
                continue;
            };
            let entries = match level {
                Level::L1 => end - page,
                _ => (end - page) / LARGE_FRAMES,
            };
            for index in (at.index()..ENTRIES).take(usize::try_from(entries).unwrap_or(ENTRIES)) {
                let at = EntryAddr::new(at.table(), index);
                let entry = self.read(at);
                if entry.bits() != 0 {
                    self.write(at, change(entry, level));
                }
            }
            page = end;
        }
    }

    /// Unlinks the tables of a level that lie over these pages and map nothing any more.
    fn unlink_tables(
        &mut self,
        pages: &Range<u64>,
        level: Level,
        above: Level,
        released: &mut SpareTables<T>,
    ) {
        let mut page = pages.start;
        while page < pages.end {
            if let (Some(slot), Some(above)) = (self.slot(page, level), self.slot(page, above)) {
                let table = slot.at.table();
                let entry = |index| self.read(EntryAddr::new(table, index));
                if (0..ENTRIES).all(|index| entry(index).bits() == 0) {
                    self.write(above.at, Entry::EMPTY);
                    released.push(table);
                }
            }
            page = next_multiple(page, level.table_bytes().frames());
        }
    }

    /// Writes the entry of a page, which must be empty.
    fn fill(&mut self, at: EntryAddr, page: u64, entry: Entry) -> Result<(), DescriptorMapError> {
        if self.read(at).bits() != 0 {
            return Err(DescriptorMapError::Taken(page));
        }
        self.write(at, entry);
        Ok(())
    }

    /// Returns the page's entry on a level, in a table that is made if it is missing.
    fn make_table(
        &mut self,
        page: u64,
        level: Level,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<EntryAddr, DescriptorMapError> {
        loop {
            let slot = self.walk(page, level).ok_or(DescriptorMapError::NoSuchPage(page))?;
            if slot.level == level {
                return Ok(slot.at);
            }
            if slot.entry.bits() != 0 {
                return Err(DescriptorMapError::Taken(page));
            }
            let table = table_frame().ok_or(DescriptorMapError::NoTable(page))?;
            for index in 0..ENTRIES {
                self.write(EntryAddr::new(table, index), Entry::EMPTY);
            }
            self.write(slot.at, Entry::new(table, OWN));
        }
    }

    /// Returns the entry that maps a page, or the empty entry where the page walk ends.
    fn lowest(&self, page: u64) -> Option<Slot> {
        self.walk(page, Level::L1).filter(|slot| slot.level <= Level::L2)
    }

    /// Returns the page's entry on a level, if there is a table.
    fn slot(&self, page: u64, level: Level) -> Option<Slot> {
        self.walk(page, level).filter(|slot| slot.level == level)
    }

    /// Returns the page's entry on a level, or on the lowest level above it that has a table.
    fn walk(&self, page: u64, level: Level) -> Option<Slot> {
        let address = self.layout.area.address(page.checked_mul(FRAME_SIZE)?)?;
        let native = Native::new(self.tables, |_: Flush| {});
        slot_from(&native, self.space, address, level).ok()
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

/// Returns the frames of an entry that maps a page, hidden or not.
fn frames_of(entry: Entry, level: Level) -> PfnRange {
    let first = entry.with(Flags::PRESENT).frame(level);
    let frames = level.entry_bytes().frames();
    first.and_then(|first| PfnRange::with_len(first, frames)).unwrap_or(PfnRange::EMPTY)
}

fn access_of(entry: Entry) -> Access {
    if entry.flags().contains(Flags::WRITABLE) { Access::Write } else { Access::Read }
}

/// Returns the index of a page's entry in its L1 table.
fn index(page: u64) -> usize {
    usize::try_from(page % IN_TABLE).unwrap_or(0)
}

/// Returns the first multiple of `of`, a power of two, above `page`.
fn next_multiple(page: u64, of: u64) -> u64 {
    (page | (of - 1)) + 1
}

impl DescriptorMapError {
    /// Returns the first page that was not mapped.
    #[must_use]
    pub const fn page(self) -> u64 {
        let (DescriptorMapError::NoSuchPage(page)
        | DescriptorMapError::Taken(page)
        | DescriptorMapError::NoTable(page)) = self;
        page
    }
}

impl fmt::Display for DescriptorMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorMapError::NoSuchPage(page) => {
                write!(f, "the descriptor map has no page {page}")
            }
            DescriptorMapError::Taken(page) => {
                write!(f, "page {page} of the descriptor map is mapped already")
            }
            DescriptorMapError::NoTable(page) => {
                write!(f, "no frame for a table of the descriptor map's page {page}")
            }
        }
    }
}

impl core::error::Error for DescriptorMapError {}

impl fmt::Display for DescriptorSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the descriptors of a pageblock, {} each, do not fill whole frames", self.0)
    }
}

impl core::error::Error for DescriptorSize {}
