//! Maps all present physical memory at one offset: by 1 GiB pages where a whole gigabyte is present,
//! and by 2 MiB pages elsewhere. In formats that must not split a page in place, such as aarch64's,
//! all pages have 2 MiB, because the other parts of a page are in use and may hold the page tables.
//!
//! Unplugged memory must not be read or written, not even by speculation, so it must not be mapped.
//! Memory is therefore unmapped when it is removed. If a part of a 1 GiB page is removed, the page
//! is split. The table for the split is reserved when the page is mapped, so unmapping needs no new
//! frame. Unmapping keeps all tables, so mapping the same range again needs no new frame either:
//! each unmapped page leaves a mark in its entry, and a table with a mark is not freed, whatever
//! other memory is removed. [`DirectMap::release_tables`] removes the marks of memory that will not
//! be mapped again, and frees the tables that have no entries left.

#[cfg(test)]
mod tests;

use crate::area::Area;
use crate::error::DirectMapError;
use crate::flush::flush_all;
use crate::tables::{CallbackOwner, LINK_BYTES, SpareTables};
use core::sync::atomic::Ordering::{Relaxed, Release};
use hotmem_addr::{Bytes, Pfn, PfnRange};
use hotmem_pgtable::{
    Attributes, Caching, ENTRIES, Entry, EntryAddr, Flush, Flusher, Format, Kind, Level,
    LocatedEntry, Mmu, Native, Run, Space, Split, StopReason, Stopped, StoppedBy, Tables,
    VirtRange, entry_at, find_entry, find_entry_from,
};

/// The number of frames of a 2 MiB page.
const LARGE_FRAMES: u64 = Level::L2.entry_span().frames();
/// The number of frames of a 1 GiB page.
const HUGE_FRAMES: u64 = Level::L3.entry_span().frames();
/// The number of frames below one root entry.
const ROOT_ENTRY_FRAMES: u64 = Level::L4.entry_span().frames();

const ENTRY_BYTES: u64 = size_of::<u64>() as u64;

/// Returns the mark of a page that was unmapped and whose tables were not released: the entry of a
/// 2 MiB page keeps its table, and for that of a 1 GiB page a table is still in reserve.
fn reserved<F: Format>() -> Entry<F> {
    Entry::EMPTY.with(F::kernel_flag())
}

/// The page tables of the direct map.
///
/// `T` gives access to the kernel's tables, and `F` flushes the TLBs of all processors.
pub struct DirectMap<T, F: Flusher> {
    tables: T,
    space: Space<F::Format>,
    area: Area,
    flusher: F,
    /// Whether pages of 1 GiB are used.
    huge_pages: bool,
    /// The attributes of the pages that are mapped, except for their caching.
    attributes: Attributes,
    /// A table for each page of 1 GiB and each [`reserved`] entry.
    reserve: SpareTables<T>,
}

/// The state of 1 GiB of the direct map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gigabyte {
    /// Nothing is mapped, and no table is in reserve.
    Unmapped,
    /// A 1 GiB page.
    Page,
    /// An unmapped 1 GiB page whose table is still in reserve.
    Reserved(EntryAddr),
    /// A table of 2 MiB pages.
    Table,
}

/// Returns the maximum number of frames that [`DirectMap::map`] takes for the tables of `range`,
/// whatever is mapped when it is called: a table for each GiB and for each 512 GiB that `range`
/// touches.
#[must_use]
pub fn tables_needed(range: PfnRange) -> u64 {
    let frames_for = |part: PfnRange| 1 + part.align_outward(HUGE_FRAMES).frames() / HUGE_FRAMES;
    range.chunks(ROOT_ENTRY_FRAMES).map(frames_for).sum()
}

impl<T: Tables + Copy, F: Flusher + Copy> DirectMap<T, F> {
    /// Makes a direct map with physical address 0 at the start of `area`, in the page tables whose
    /// root table is the frame `root`. `huge_pages` says whether the processor supports 1 GiB pages;
    /// the map uses them if they may be [split in place](Format::SPLITS_IN_PLACE). Pages are mapped
    /// with [`Attributes::KERNEL_DATA`]. On x86-64, the processor must support no-execute pages, and
    /// the kernel must have enabled them (`EFER.NXE`) on every CPU. Otherwise, each access to such a
    /// page faults. A kernel without them sets [other attributes](Self::with_attributes).
    #[must_use]
    pub fn new(tables: T, root: Pfn, area: Area, huge_pages: bool, flusher: F) -> Self {
        let (space, reserve) = (area.space(root), SpareTables::new(tables));
        let huge_pages = huge_pages && F::Format::SPLITS_IN_PLACE;
        let attributes = Attributes::KERNEL_DATA;
        DirectMap { tables, space, area, flusher, huge_pages, attributes, reserve }
    }

    /// Sets the attributes of the pages that are mapped from now on, for example
    /// [`Attributes::KERNEL_DATA`] that are global, or executable. [`map`](Self::map) chooses the
    /// caching.
    #[must_use]
    pub fn with_attributes(self, attributes: Attributes) -> Self {
        DirectMap { attributes, ..self }
    }

    /// Returns the number of frames that mapping `range` would take now, including the tables that
    /// are put in reserve. If other memory is unmapped first and its tables are released, it may
    /// take more: up to [`tables_needed`].
    #[must_use]
    pub fn tables_missing(&self, range: PfnRange) -> u64 {
        let range = range.align_outward(LARGE_FRAMES);
        let frames_for = |part: PfnRange| {
            if self.entry_on_level(part.start(), Level::L3).is_none() {
                return tables_needed(part);
            }
            let is_missing =
                |part: &PfnRange| self.gigabyte_state(part.start()) == Gigabyte::Unmapped;
            part.chunks(HUGE_FRAMES).filter(is_missing).count() as u64
        };
        range.chunks(ROOT_ENTRY_FRAMES).map(frames_for).sum()
    }

    /// Maps the 2 MiB pages that `range` touches and that are not mapped yet. Takes frames for
    /// missing tables from `table_frame`. Returns how many bytes of page tables were written.
    ///
    /// # Errors
    /// [`DirectMapError`]. Pages that were mapped before the error stay mapped.
    pub fn map(
        &mut self,
        range: PfnRange,
        caching: Caching,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<Bytes, DirectMapError<F::Format>> {
        let range = range.align_outward(LARGE_FRAMES);
        if range.end().phys_addr() > self.area.bytes().0 {
            return Err(DirectMapError::BeyondDirectMap(range));
        }
        let mut written = Bytes::ZERO;
        for part in range.chunks(HUGE_FRAMES).filter(|part| !part.is_empty()) {
            let is_whole = self.huge_pages && part.frames() == HUGE_FRAMES;
            let state = self.gigabyte_state(part.start());
            match state {
                Gigabyte::Reserved(addr) if is_whole => self.write_entry(addr, Entry::EMPTY),
                Gigabyte::Reserved(addr) => self.link_reserved_table(addr),
                _ => {}
            }
            self.replace_entries(part, |entry| entry == reserved(), Entry::EMPTY);
            written = written
                + match (state, is_whole) {
                    (Gigabyte::Page, _) => Bytes::ZERO,
                    (Gigabyte::Unmapped, true) => {
                        let spare = table_frame().ok_or(DirectMapError::NoTableFrame(part))?;
                        let bytes = self.map_pages(part, Level::L3, caching, &mut table_frame)?;
                        self.reserve.push(spare);
                        bytes + LINK_BYTES
                    }
                    (Gigabyte::Reserved(_), true) => {
                        self.map_pages(part, Level::L3, caching, || None)?
                    }
                    (Gigabyte::Unmapped | Gigabyte::Table | Gigabyte::Reserved(_), _) => {
                        self.map_pages(part, Level::L2, caching, &mut table_frame)?
                    }
                };
        }
        Ok(written)
    }

    /// Unmaps the pages that lie wholly within `range`, and flushes the TLBs of all CPUs. Keeps the
    /// tables of these pages until [`release_tables`](Self::release_tables) is called for them, so
    /// that mapping them again takes no frame.
    ///
    /// # Errors
    /// [`Stopped`] if a 1 GiB page cannot be split, because it was not mapped by
    /// [`map`](Self::map). The pages below it are unmapped.
    pub fn unmap(&mut self, range: PfnRange) -> Result<(), StoppedBy<Native<T, F>>> {
        let pages = range.align_inward(LARGE_FRAMES);
        let Some(virt) = self.virt_range(pages) else { return Ok(()) };
        let mut is_changed = false;
        let mut unmap = |map: &mut Self| {
            for part in pages.chunks(HUGE_FRAMES) {
                is_changed |= map.unmap_part(part)?;
            }
            Ok(())
        };
        let unmapped = unmap(self);
        if is_changed {
            self.mmu().flush(Flush { range: virt, tables: false }).map_err(|fault| Stopped {
                address: virt.start(),
                reason: StopReason::Mmu(fault),
                is_flushed: false,
            })?;
        }
        unmapped
    }

    /// Unmaps `part`, which lies within one gigabyte, without a flush. Returns whether a page was
    /// mapped.
    fn unmap_part(&mut self, part: PfnRange) -> Result<bool, StoppedBy<Native<T, F>>> {
        let Some(located) = self.entry_on_level(part.start(), Level::L3) else { return Ok(false) };
        match located.kind() {
            Kind::Page if part.frames() == HUGE_FRAMES => {
                self.write_entry(located.addr, reserved());
                return Ok(true);
            }
            // The page is split without a moment in which it is not present, because its other
            // parts are in use and may hold these page tables.
            Kind::Page => {
                let stopped = |reason| Stopped { address: located.virt, reason, is_flushed: true };
                let table = self.reserve.pop();
                let table = table.ok_or(stopped(StopReason::NoTableFrame(located.entry)))?;
                let mut mmu = self.mmu().with_split(Split::InPlace);
                if let Err(fault) = mmu.split(&located, table) {
                    self.reserve.push(table);
                    return Err(stopped(StopReason::Mmu(fault)));
                }
            }
            _ => {}
        }
        Ok(self.replace_entries(part, |_| true, reserved()))
    }

    /// Returns whether the frame is mapped.
    #[must_use]
    pub fn is_mapped(&self, pfn: Pfn) -> bool {
        let located = |address| find_entry(&self.mmu(), self.space, address).ok();
        let located = self.area.address(pfn.phys_addr()).and_then(located);
        located.is_some_and(|located| located.kind() == Kind::Page)
    }

    /// Unlinks the tables of `range` that map nothing any more and that no other unmapped page
    /// keeps, flushes the TLBs of all CPUs, and passes the tables to `free`. The pages of `range`
    /// are unmapped.
    pub fn release_tables(&mut self, range: PfnRange, mut free: impl FnMut(Pfn)) {
        let mut released = SpareTables::new(self.tables);
        for part in range.align_outward(LARGE_FRAMES).chunks(ROOT_ENTRY_FRAMES) {
            let Some(first) = self.entry_on_level(part.start(), Level::L3) else { continue };
            for part in part.chunks(HUGE_FRAMES) {
                // If only a part of an unmapped 1 GiB page is released, the other part keeps the
                // table.
                if let Gigabyte::Reserved(addr) = self.gigabyte_state(part.start())
                    && part.frames() != HUGE_FRAMES
                {
                    self.link_reserved_table(addr);
                }
                self.replace_entries(part, |entry| entry == reserved(), Entry::EMPTY);
                let Some(located) = self.entry_on_level(part.start(), Level::L3) else { continue };
                let unused_table = match located.kind() {
                    _ if located.entry == reserved() => self.reserve.pop(),
                    Kind::Table(table) if self.is_table_empty(table) => Some(table),
                    _ => None,
                };
                if let Some(table) = unused_table {
                    self.write_entry(located.addr, Entry::EMPTY);
                    released.push(table);
                }
            }
            let table = first.addr.table();
            if let Some(above) =
                self.entry_on_level(part.start(), Level::L4).filter(|_| self.is_table_empty(table))
            {
                self.write_entry(above.addr, Entry::EMPTY);
                released.push(table);
            }
        }
        if let Some(range) = self.virt_range(range).filter(|_| !released.is_empty()) {
            flush_all(&mut self.flusher, Flush { range, tables: true });
        }
        while let Some(table) = released.pop() {
            free(table);
        }
    }

    /// Takes the table in reserve for the unmapped 1 GiB page whose entry is at `addr`, marks all
    /// its pages as unmapped, and makes the entry point to it.
    fn link_reserved_table(&mut self, addr: EntryAddr) {
        let Some(table) = self.reserve.pop() else { return };
        if let Some(words) = self.tables.table(table) {
            words.iter().for_each(|word| word.store(reserved::<F::Format>().bits(), Relaxed));
        }
        self.write_entry(addr, Entry::link(table));
    }

    /// Replaces the entry of each 2 MiB page of `part` for which `is_replaced` returns true.
    /// `part` lies within one gigabyte. Returns whether a page was mapped there. Does nothing if the
    /// gigabyte has no table.
    fn replace_entries(
        &mut self,
        part: PfnRange,
        is_replaced: impl Fn(Entry<F::Format>) -> bool,
        new: Entry<F::Format>,
    ) -> bool {
        let Some(first) = self.entry_on_level(part.start(), Level::L2) else { return false };
        let Some(table) = self.tables.table(first.addr.table()) else { return false };
        let pages = usize::try_from(part.frames() / LARGE_FRAMES).unwrap_or(ENTRIES);
        let mut was_mapped = false;
        for word in table.iter().skip(first.addr.index()).take(pages) {
            let entry = Entry::from_bits(word.load(Relaxed));
            if is_replaced(entry) {
                was_mapped |= entry.is_present();
                word.store(new.bits(), Relaxed);
            }
        }
        was_mapped
    }

    /// Maps the pages of `part`, which lies within one gigabyte, that are not mapped yet. Returns
    /// how many bytes it wrote.
    fn map_pages(
        &self,
        part: PfnRange,
        level: Level,
        caching: Caching,
        new_table: impl FnMut() -> Option<Pfn>,
    ) -> Result<Bytes, DirectMapError<F::Format>> {
        let flags = F::Format::page_flags(Attributes { caching, ..self.attributes }, level);
        let mut owner = CallbackOwner { new_table, unmapped: |_: Run<F::Format>| {} };
        let (mut remaining, mut written) = (part, Bytes::ZERO);
        while let Some(virt) = self.virt_range(remaining) {
            let entry = Entry::new(remaining.start(), flags);
            match self.mmu().map(self.space, Run { virt, entry, level }, &mut owner) {
                Ok(bytes) => return Ok(written + bytes),
                // Skip a page that is mapped already, because it also belongs to another range.
                Err(Stopped { address, reason: StopReason::Occupied(entry), .. })
                    if entry.is_present() && self.is_well_formed_at(address, level) =>
                {
                    let frames = Bytes(address - virt.start()).frames();
                    written = written + Bytes(frames / level.entry_span().frames() * ENTRY_BYTES);
                    let next = frames + level.entry_span().frames();
                    let next = remaining.start().checked_add(next).unwrap_or(Pfn::LIMIT);
                    remaining = remaining.split_at(next).1;
                }
                Err(Stopped { reason: StopReason::NoTableFrame(_), .. }) => {
                    return Err(DirectMapError::NoTableFrame(part));
                }
                Err(stopped) => return Err(DirectMapError::Tables(stopped)),
            }
        }
        Ok(written)
    }

    /// Returns the state of the 1 GiB that contains `frame`.
    fn gigabyte_state(&self, frame: Pfn) -> Gigabyte {
        let Some(located) = self.entry_on_level(frame, Level::L3) else {
            return Gigabyte::Unmapped;
        };
        match located.kind() {
            _ if located.entry == reserved() => Gigabyte::Reserved(located.addr),
            Kind::Empty => Gigabyte::Unmapped,
            Kind::Page => Gigabyte::Page,
            _ => Gigabyte::Table,
        }
    }

    /// Returns whether the walk for an address ends above `level` or on it at an entry that the format
    /// has there. It does not, for example, if the root has another number of levels than the area.
    fn is_well_formed_at(&self, address: u64, level: Level) -> bool {
        let located = find_entry_from(&self.mmu(), self.space, address, level);
        located.is_ok_and(|located| located.kind() != Kind::Malformed)
    }

    /// Returns the entry for `frame` on a level, or `None` if no table on that level covers `frame`.
    fn entry_on_level(&self, frame: Pfn, level: Level) -> Option<LocatedEntry<F::Format>> {
        let address = self.area.address(frame.phys_addr())?;
        let located = find_entry_from(&self.mmu(), self.space, address, level).ok()?;
        (located.level == level).then_some(located)
    }

    fn is_table_empty(&self, table: Pfn) -> bool {
        let empty =
            |table| (0..ENTRIES).all(|index| entry_at::<F::Format>(table, index).is_empty());
        self.tables.table(table).is_some_and(empty)
    }

    /// Writes an entry. If the old entry was present, the caller flushes the TLBs.
    fn write_entry(&mut self, addr: EntryAddr, entry: Entry<F::Format>) {
        if let Some(table) = self.tables.table(addr.table()) {
            // Release pairs with the dependent reads of the page walk: a walk that finds a link also
            // finds the entries of the table.
            table[addr.index()].store(entry.bits(), Release);
        }
    }

    /// Returns the virtual addresses of the frames of `range` that lie within the area, or `None` if
    /// there are none.
    fn virt_range(&self, range: PfnRange) -> Option<VirtRange> {
        let end = Pfn::containing(self.area.bytes().0).unwrap_or(Pfn::LIMIT);
        let range = range.split_at(end).0;
        VirtRange::new(self.area.address(range.start().phys_addr())?, range.bytes()).ok()
    }

    fn mmu(&self) -> Native<T, F> {
        Native::new(self.tables, self.flusher)
    }
}
