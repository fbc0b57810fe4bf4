//! Reads and writes the entries of the descriptor map's page tables, and adds and unlinks tables.

use super::DescriptorMap;
use super::error::DescriptorMapError;
use super::page::{LARGE_FRAMES, PAGES_PER_L1_TABLE};
use crate::tables::SpareTables;
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, Release};
use hotmem_addr::Pfn;
use hotmem_addr::geometry::FRAME_SIZE;
use hotmem_pgtable::{
    ENTRIES, Entry, EntryAddr, Flusher, Level, LocatedEntry, Native, Tables, entry_at,
    find_entry_from,
};

impl<T: Tables + Copy, F: Flusher + Copy> DescriptorMap<T, F> {
    /// Replaces every entry that maps some of `pages` by `change(entry, level)`. The entry of a large
    /// page is replaced only if `pages` covers that whole page.
    pub(super) fn change(
        &mut self,
        pages: Range<u64>,
        mut change: impl FnMut(Entry<F::Format>, Level) -> Entry<F::Format>,
    ) {
        let (tables, mut page) = (self.tables, pages.start);
        while page < pages.end {
            let end = next_multiple(page, PAGES_PER_L1_TABLE).min(pages.end);
            let Some(LocatedEntry { addr, level, .. }) = self.leaf_entry(page) else {
                page = next_multiple(page, PAGES_PER_L1_TABLE * PAGES_PER_L1_TABLE);
                continue;
            };
            let entries = match level {
                Level::L1 => end - page,
                _ => (end - page) / LARGE_FRAMES,
            };
            let entries = usize::try_from(entries).unwrap_or(ENTRIES);
            let table = tables.table(addr.table()).map_or(&[][..], |table| &table[addr.index()..]);
            for place in table.iter().take(entries) {
                let bits = place.load(Relaxed);
                if bits != 0 {
                    place.store(change(Entry::from_bits(bits), level).bits(), Release);
                }
            }
            page = end;
        }
    }

    /// Unlinks the tables of `level` that cover some of `pages` and map nothing any more, and adds
    /// them to `released`. `level_above` is the next higher level.
    pub(super) fn unlink_tables(
        &mut self,
        pages: &Range<u64>,
        level: Level,
        level_above: Level,
        released: &mut SpareTables<T>,
    ) {
        let mut page = pages.start;
        while page < pages.end {
            if let (Some(located), Some(above)) =
                (self.entry_on_level(page, level), self.entry_on_level(page, level_above))
            {
                let table = located.addr.table();
                let entry = |index| self.read(EntryAddr::new(table, index));
                if (0..ENTRIES).all(|index| entry(index).bits() == 0) {
                    self.write(above.addr, Entry::EMPTY);
                    released.push(table);
                }
            }
            page = next_multiple(page, level.table_span().frames());
        }
    }

    /// Returns the address of the page's entry on a level. Makes the missing tables above it.
    pub(super) fn get_or_make_entry(
        &mut self,
        page: u64,
        level: Level,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<EntryAddr, DescriptorMapError> {
        loop {
            let located = self.walk(page, level).ok_or(DescriptorMapError::NoSuchPage(page))?;
            if located.level == level {
                return Ok(located.addr);
            }
            if located.entry.bits() != 0 {
                return Err(DescriptorMapError::AlreadyMapped(page));
            }
            let table = table_frame().ok_or(DescriptorMapError::NoFrame(page))?;
            // The link below publishes the table.
            for place in self.tables.table(table).into_iter().flatten() {
                place.store(0, Relaxed);
            }
            self.write(located.addr, Entry::link(table));
        }
    }

    /// Returns the L1 or L2 entry at which the page walk for `page` ends, or `None` if the walk ends
    /// on a higher level.
    pub(super) fn leaf_entry(&self, page: u64) -> Option<LocatedEntry<F::Format>> {
        self.walk(page, Level::L1).filter(|located| located.level <= Level::L2)
    }

    /// Returns the page's entry on a level, or `None` if no table on that level covers the page.
    pub(super) fn entry_on_level(
        &self,
        page: u64,
        level: Level,
    ) -> Option<LocatedEntry<F::Format>> {
        self.walk(page, level).filter(|located| located.level == level)
    }

    /// Returns the page's entry on a level, or on the lowest level above it that has a table.
    fn walk(&self, page: u64, level: Level) -> Option<LocatedEntry<F::Format>> {
        let address = self.layout.area.address(page.checked_mul(FRAME_SIZE)?)?;
        let native = Native::new(self.tables, self.flusher);
        find_entry_from(&native, self.space, address, level).ok()
    }

    fn read(&self, addr: EntryAddr) -> Entry<F::Format> {
        let table = self.tables.table(addr.table());
        table.map_or(Entry::EMPTY, |table| entry_at(table, addr.index()))
    }

    fn write(&mut self, addr: EntryAddr, entry: Entry<F::Format>) {
        if let Some(table) = self.tables.table(addr.table()) {
            // Release pairs with the address dependency of the processor's page walk: a walk that
            // reads this entry sees the entries of the new table that it points to.
            table[addr.index()].store(entry.bits(), Release);
        }
    }
}

/// Returns the first multiple of `unit` above `page`. `unit` is a power of two.
fn next_multiple(page: u64, unit: u64) -> u64 {
    (page | (unit - 1)) + 1
}
