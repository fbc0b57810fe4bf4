//! The direct map: all usable physical memory at one offset in the upper half of the address
//! space, in pages of 1 GiB where all of one is there, and of 2 MiB elsewhere.
//!
//! Unplugged memory must not be read or written, not even by speculation, so it must not be
//! mapped: the map comes and goes with the memory, and a page of 1 GiB is split when a part of it
//! goes. The table that this takes is put in reserve when the page is mapped: unmapping cannot
//! fail. It keeps all tables, so that mapping the same range again cannot fail either;
//! [`PageTables::release_tables`] gives them back once the memory is gone for good.

use crate::tables::{FrameTables, Kernel, SpareTables};
use crate::to_usize;
use crate::window::FlushAll;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use hotmem::{Bytes, Pfn, PfnRange};
use hotmem_pgtable::{
    self as pgtable, Batch, Covered, ENTRIES, Entry, EntryAddr, Flags, Flush, Kind, Level, Native,
    NativeFault, Run, Space, Stopped, Tables, Unmap, VirtRange, Why, entry_at, slot_at,
};

/// Where physical address 0 appears: the start of the upper half.
pub const DIRECT_MAP_BASE: u64 = 0xffff_8000_0000_0000;
/// Physical memory that the direct map has room for: all of the upper half but its last 16 TiB,
/// in which the kernel itself lies.
pub const DIRECT_MAP_BYTES: u64 = 112 << 40;

/// Frames behind a page of 2 MiB, behind one of 1 GiB, and behind all of those below one entry of
/// the root.
const LARGE_FRAMES: u64 = Level::L2.entry_bytes().frames();
const HUGE_FRAMES: u64 = Level::L3.entry_bytes().frames();
const ROOT_ENTRY_FRAMES: u64 = Level::L4.entry_bytes().frames();

const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// Accessed and Dirty are set from the start so that no access has to set them.
const PAGE: Flags = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::USED).union(Flags::LARGE);
/// Instead of a page of 1 GiB that was unmapped: its table is still in reserve.
const RESERVED: Entry = Entry::from_bits(1 << 9);

/// How the CPU may cache what is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Memory.
    WriteBack,
    /// Device registers.
    Uncached,
}

/// Why a range was not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// It lies beyond [`DIRECT_MAP_BYTES`].
    BeyondDirectMap(PfnRange),
    /// There were no frames for the page tables it needs.
    NoTableFrame(PfnRange),
    /// The page tables hold what they should not.
    Tables(Stopped<NativeFault>),
}

/// The page tables of the direct map.
pub struct PageTables {
    tables: FrameTables,
    space: Space,
    flush: FlushAll,
    /// Whether the processor has pages of 1 GiB.
    huge_pages: bool,
    /// A table for each page of 1 GiB and each [`RESERVED`] entry.
    reserve: SpareTables,
}

/// What there is for 1 GiB.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gigabyte {
    Nothing,
    /// A page.
    Page,
    /// A page was there, whose table is still in reserve.
    Reserved(EntryAddr),
    /// A table, for pages of 2 MiB.
    Table,
}

impl PageTables {
    /// The direct map within `space`, whose entries of the root for it nobody else changes.
    #[must_use]
    pub const fn new(tables: FrameTables, space: Space, huge_pages: bool, flush: FlushAll) -> Self {
        let reserve = SpareTables::new(tables);
        PageTables { tables, space, flush, huge_pages, reserve }
    }

    /// Frames that mapping `range` would take: for page tables, and for those put in reserve.
    #[must_use]
    pub fn tables_needed(&self, range: PfnRange) -> u64 {
        let range = range.align_outward(LARGE_FRAMES);
        let needed = |part: PfnRange| {
            if self.table(part.start(), Level::L3).is_none() {
                return 1 + part.align_outward(HUGE_FRAMES).frames() / HUGE_FRAMES;
            }
            let missing = |part: &PfnRange| self.gigabyte(part.start()) == Gigabyte::Nothing;
            part.chunks(HUGE_FRAMES).filter(missing).count() as u64
        };
        range.chunks(ROOT_ENTRY_FRAMES).map(needed).sum()
    }

    /// Maps the 2 MiB pages that `range` touches, as far as they are not, taking frames for the
    /// tables that are missing. Returns how many bytes of tables it wrote.
    ///
    /// # Errors
    /// [`MapError`]. If frames run out, what was mapped so far stays mapped.
    pub fn map(
        &mut self,
        range: PfnRange,
        caching: Caching,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<Bytes, MapError> {
        let range = range.align_outward(LARGE_FRAMES);
        if range.end().phys_addr() > DIRECT_MAP_BYTES {
            return Err(MapError::BeyondDirectMap(range));
        }
        let mut written = Bytes::ZERO;
        for part in range.chunks(HUGE_FRAMES).filter(|part| !part.is_empty()) {
            let whole = self.huge_pages && part.frames() == HUGE_FRAMES;
            let there = self.gigabyte(part.start());
            if let Gigabyte::Reserved(at) = there {
                self.set(at, Entry::EMPTY);
            }
            written = written
                + match (there, whole) {
                    (Gigabyte::Page, _) => Bytes::ZERO,
                    (Gigabyte::Nothing, true) => {
                        let spare = table_frame().ok_or(MapError::NoTableFrame(part))?;
                        let bytes = self.map_pages(part, Level::L3, caching, &mut table_frame)?;
                        self.reserve.push(spare);
                        bytes + SpareTables::LINK_BYTES
                    }
                    (Gigabyte::Reserved(_), true) => {
                        self.map_pages(part, Level::L3, caching, || None)?
                    }
                    (Gigabyte::Reserved(_), false) => {
                        let mut table = self.reserve.pop();
                        self.map_pages(part, Level::L2, caching, || table.take())?
                    }
                    (Gigabyte::Nothing | Gigabyte::Table, _) => {
                        self.map_pages(part, Level::L2, caching, &mut table_frame)?
                    }
                };
        }
        Ok(written)
    }

    /// Clears the pages that lie wholly within `range`, and has all CPUs forget them. Keeps the
    /// tables.
    ///
    /// # Errors
    /// [`Stopped`], where `range` ends within 1 GiB that is not mapped any more.
    pub fn unmap(&mut self, range: PfnRange) -> Result<(), Stopped<NativeFault>> {
        let Some(virt) = virt(range.align_inward(LARGE_FRAMES)) else { return Ok(()) };
        let PageTables { tables, space, flush, reserve, .. } = self;
        let (tables, space, mmu) = (*tables, *space, Native::new(*tables, *flush));
        let reserved = |run: Run| {
            let (start, last) = (run.virt.start(), run.virt.last());
            let pages = (start..=last).step_by(to_usize(Level::L3.entry_bytes().0));
            for page in pages.filter(|_| run.level == Level::L3) {
                if let Ok(slot) = slot_at(&Native::new(tables, |_: Flush| {}), space, page) {
                    store(tables, slot.at, RESERVED);
                }
            }
        };
        let how = Unmap { tables: Covered::Keep, ignore_used: true, dying: false };
        let mut kernel = Kernel { new_table: || reserve.pop(), unmapped: reserved };
        pgtable::PageTables::new(mmu, space, &mut Batch::new()).unmap_range(virt, how, &mut kernel)
    }

    /// Whether the frame is mapped.
    #[must_use]
    pub fn is_mapped(&self, pfn: Pfn) -> bool {
        pfn.phys_addr() < DIRECT_MAP_BYTES
            && slot_at(&self.mmu(), self.space, DIRECT_MAP_BASE + pfn.phys_addr())
                .is_ok_and(|slot| slot.kind() == Kind::Page)
    }

    /// Gives back the tables that served `range` and now map nothing, once all CPUs have forgotten
    /// where they were.
    pub fn release_tables(&mut self, range: PfnRange, mut free: impl FnMut(Pfn)) {
        let mut released = SpareTables::new(self.tables);
        for part in range.align_outward(LARGE_FRAMES).chunks(ROOT_ENTRY_FRAMES) {
            let Some(table) = self.table(part.start(), Level::L3) else { continue };
            for part in part.chunks(HUGE_FRAMES) {
                let below = match self.gigabyte(part.start()) {
                    // Of the others, a part may yet be mapped again.
                    Gigabyte::Reserved(_) if part.frames() == HUGE_FRAMES => self.reserve.pop(),
                    Gigabyte::Table => {
                        self.table(part.start(), Level::L2).filter(|&table| self.is_empty(table))
                    }
                    _ => None,
                };
                if let Some(below) = below {
                    self.set(EntryAddr::new(table, index(part.start(), Level::L3)), Entry::EMPTY);
                    released.push(below);
                }
            }
            if self.is_empty(table) {
                let at = EntryAddr::new(self.space.root, index(part.start(), Level::L4));
                self.set(at, Entry::EMPTY);
                released.push(table);
            }
        }
        if let Some(range) = virt(range).filter(|_| !released.is_empty()) {
            (self.flush)(Flush { range, tables: true });
        }
        while let Some(table) = released.pop() {
            free(table);
        }
    }

    /// Maps what is not mapped of a part of 1 GiB. Returns how many bytes it wrote.
    fn map_pages(
        &self,
        part: PfnRange,
        level: Level,
        caching: Caching,
        new_table: impl FnMut() -> Option<Pfn>,
    ) -> Result<Bytes, MapError> {
        let caching = match caching {
            Caching::WriteBack => Flags::empty(),
            Caching::Uncached => Flags::WRITE_THROUGH | Flags::CACHE_DISABLE,
        };
        let mut kernel = Kernel { new_table, unmapped: |_| {} };
        let mut batch = Batch::new();
        let (mut rest, mut written) = (part, Bytes::ZERO);
        while let Some(virt) = virt(rest) {
            let entry = Entry::new(rest.start(), PAGE | caching);
            let mut tables = pgtable::PageTables::new(self.mmu(), self.space, &mut batch);
            match tables.map(Run { virt, entry, level }, &mut kernel) {
                Ok(bytes) => return Ok(written + bytes),
                // It is mapped already: two ranges touch this page.
                Err(Stopped { at, why: Why::Occupied(there), .. }) if there.is_present() => {
                    let frames = Bytes(at - virt.start()).frames();
                    written = written + Bytes(frames / level.entry_bytes().frames() * ENTRY_BYTES);
                    let next = frames + level.entry_bytes().frames();
                    let next = rest.start().checked_add(next).unwrap_or(Pfn::LIMIT);
                    rest = rest.split_at(next).1;
                }
                Err(Stopped { why: Why::NoTableFrame(_), .. }) => {
                    return Err(MapError::NoTableFrame(part));
                }
                Err(stopped) => return Err(MapError::Tables(stopped)),
            }
        }
        Ok(written)
    }

    /// What there is for the 1 GiB that the frame lies in.
    fn gigabyte(&self, frame: Pfn) -> Gigabyte {
        let Some(table) = self.table(frame, Level::L3) else { return Gigabyte::Nothing };
        let at = EntryAddr::new(table, index(frame, Level::L3));
        match self.tables.table(table).map(|table| entry_at(table, at.index())) {
            Some(RESERVED) => Gigabyte::Reserved(at),
            Some(entry) => match entry.kind(Level::L3) {
                Kind::Empty => Gigabyte::Nothing,
                Kind::Page => Gigabyte::Page,
                _ => Gigabyte::Table,
            },
            None => Gigabyte::Nothing,
        }
    }

    /// The table of a level that the frame is mapped by.
    fn table(&self, frame: Pfn, level: Level) -> Option<Pfn> {
        let (mut table, mut at) = (self.space.root, self.space.levels);
        while at > level {
            let entry = entry_at(self.tables.table(table)?, index(frame, at));
            let Kind::Table(below) = entry.kind(at) else { return None };
            (table, at) = (below, at.below()?);
        }
        Some(table)
    }

    fn is_empty(&self, table: Pfn) -> bool {
        let empty = |table| (0..ENTRIES).all(|index| entry_at(table, index).is_empty());
        self.tables.table(table).is_some_and(empty)
    }

    fn set(&mut self, at: EntryAddr, entry: Entry) {
        store(self.tables, at, entry);
    }

    fn mmu(&self) -> Native<FrameTables, FlushAll> {
        Native::new(self.tables, self.flush)
    }
}

/// Writes an entry that maps nothing, instead of one that maps nothing.
fn store(tables: FrameTables, at: EntryAddr, entry: Entry) {
    if let Some(table) = tables.table(at.table()) {
        table[at.index()].store(entry.bits(), Relaxed);
    }
}

/// Where frames are seen, if there are any.
fn virt(range: PfnRange) -> Option<VirtRange> {
    VirtRange::new(DIRECT_MAP_BASE.checked_add(range.start().phys_addr())?, range.bytes()).ok()
}

/// Which entry of a table of this level maps the frame.
fn index(frame: Pfn, level: Level) -> usize {
    let address = DIRECT_MAP_BASE.wrapping_add(frame.phys_addr());
    to_usize(address / level.entry_bytes().0) % ENTRIES
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::BeyondDirectMap(range) => {
                write!(f, "{range} lies beyond the direct map")
            }
            MapError::NoTableFrame(range) => {
                write!(f, "no frame for the page tables of {range}")
            }
            MapError::Tables(stopped) => write!(f, "page tables: {stopped}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame_words::FrameWords;

    /// Frames 1.. of an arena are the tables; frame 1 is the root.
    struct Arena {
        frames: Vec<[u64; 512]>,
        next: u64,
    }

    impl Arena {
        /// An arena whose frames hold rubbish, but for an empty root.
        fn new(huge_pages: bool) -> (Arena, PageTables) {
            let mut frames = vec![[u64::MAX; 512]; 32];
            frames[1] = [0; 512];
            let memory = FrameWords::at_offset(frames.as_mut_ptr().expose_provenance());
            // SAFETY: the arena's frames are 4 KiB each, live as long as the test, and are not
            // looked at while the map is in use.
            let tables = unsafe { FrameTables::new(memory) };
            let space = Space { root: Pfn::new(1).unwrap(), levels: Level::L4 };
            (Arena { frames, next: 2 }, PageTables::new(tables, space, huge_pages, |_| {}))
        }

        fn frame(&mut self) -> Option<Pfn> {
            let frame = self.next;
            self.next += 1;
            (frame < self.frames.len() as u64).then(|| Pfn::new(frame).unwrap())
        }

        fn taken(&self) -> Vec<u64> {
            (2..self.next).collect()
        }
    }

    fn range(start: Bytes, len: Bytes) -> PfnRange {
        PfnRange::from_bytes(start.0, len).unwrap()
    }

    fn mapped(map: &PageTables, range: PfnRange) -> bool {
        let pages: Vec<bool> = range.chunks(512).map(|page| map.is_mapped(page.start())).collect();
        assert!(pages.windows(2).all(|pair| pair[0] == pair[1]), "mapped in part");
        pages[0]
    }

    fn release(map: &mut PageTables, range: PfnRange) -> Vec<u64> {
        let mut freed = Vec::new();
        map.release_tables(range, |frame| freed.push(frame.number()));
        freed.sort_unstable();
        freed
    }

    #[test]
    fn maps_what_was_asked_for_and_no_more() {
        let (mut arena, mut map) = Arena::new(true);
        let wanted = range(Bytes::mib(1022), Bytes::mib(6));
        assert_eq!(map.tables_needed(wanted), 3);
        let written = map.map(wanted, Caching::WriteBack, || arena.frame()).unwrap();
        assert_eq!(written, Bytes(3 * (4096 + 8) + 3 * 8), "tables, what leads to them, and pages");
        assert_eq!(arena.next, 5);
        assert_eq!(map.map(wanted, Caching::WriteBack, || None), Ok(Bytes::ZERO));
        let more = range(Bytes::mib(1020), Bytes::mib(10));
        assert_eq!(map.map(more, Caching::WriteBack, || None), Ok(Bytes(2 * 8)));
        assert!(mapped(&map, more));
        assert!(!map.is_mapped(Pfn::containing(Bytes::mib(1019).0).unwrap()));
        assert!(!map.is_mapped(Pfn::containing(Bytes::mib(1030).0).unwrap()));
        assert_eq!(map.tables_needed(range(Bytes::ZERO, Bytes::gib(2))), 0);
        assert_eq!(map.tables_needed(range(Bytes::gib(1), Bytes::gib(2))), 1);
    }

    #[test]
    fn entries_hold_address_and_caching() {
        for huge_pages in [false, true] {
            let (mut arena, mut map) = Arena::new(huge_pages);
            let at = Bytes::gib(255);
            map.map(range(at, Bytes::gib(1)), Caching::Uncached, || arena.frame()).unwrap();
            let last = DIRECT_MAP_BASE + at.0 + Bytes::mib(1022).0;
            let slot = slot_at(&map.mmu(), map.space, last).unwrap();
            let (address, level) =
                if huge_pages { (at.0, Level::L3) } else { (at.0 + Bytes::mib(1022).0, Level::L2) };
            assert_eq!((slot.entry.bits(), slot.level), (address | 0xfb, level));
        }
    }

    #[test]
    fn unmapping_keeps_the_tables_and_releasing_gives_them_back() {
        for huge_pages in [false, true] {
            let (mut arena, mut map) = Arena::new(huge_pages);
            let all = range(Bytes::gib(511), Bytes::gib(2));
            assert_eq!(map.tables_needed(all), 4);
            map.map(all, Caching::WriteBack, || arena.frame()).unwrap();
            assert_eq!(arena.next, 6);
            map.unmap(all).unwrap();
            assert!(!mapped(&map, all));
            assert_eq!(map.tables_needed(all), 0);
            map.map(all, Caching::WriteBack, || None).unwrap();
            assert!(mapped(&map, all));

            let (low, high) = all.split_at(Pfn::containing(Bytes::gib(512).0).unwrap());
            map.unmap(high).unwrap();
            let mut freed = release(&mut map, all);
            assert!(mapped(&map, low));
            assert_eq!(freed.len(), 2);
            map.unmap(low).unwrap();
            freed.extend(release(&mut map, low));
            assert_eq!(map.tables_needed(all), 4);
            freed.sort_unstable();
            assert_eq!(freed, arena.taken());
        }
    }

    #[test]
    fn a_part_of_a_huge_page_goes_and_comes_without_more_frames() {
        let (mut arena, mut map) = Arena::new(true);
        let all = range(Bytes::gib(4), Bytes::gib(3));
        let written = map.map(all, Caching::WriteBack, || arena.frame()).unwrap();
        assert_eq!(written, Bytes(4096 + 8 + 3 * (8 + 8)));
        // The end of one page, all of the next, and the start of the third.
        let part = range(
            Bytes(Bytes::gib(5).0 - Bytes::mib(2).0),
            Bytes(Bytes::gib(1).0 + Bytes::mib(6).0),
        );
        let (below, above) = (all.split_at(part.start()).0, all.split_at(part.end()).1);
        for _ in 0..2 {
            map.unmap(part).unwrap();
            assert!(mapped(&map, below) && !mapped(&map, part) && mapped(&map, above));
            assert_eq!(map.tables_needed(all), 0);
            map.map(part, Caching::WriteBack, || None).unwrap();
            assert!(mapped(&map, all));
        }
        let slot = slot_at(&map.mmu(), map.space, DIRECT_MAP_BASE + Bytes::gib(4).0).unwrap();
        assert_eq!((slot.level, slot.entry.bits()), (Level::L2, Bytes::gib(4).0 | 0xe3));
        // A part comes again of what went as a whole.
        let whole = range(Bytes::gib(5), Bytes::gib(1));
        map.unmap(whole).unwrap();
        let (low, high) = whole.split_at(Pfn::containing(Bytes::mib(5120 + 512).0).unwrap());
        assert_eq!(release(&mut map, low), []);
        map.map(high, Caching::WriteBack, || None).unwrap();
        assert!(mapped(&map, high) && !mapped(&map, low));
        map.unmap(high).unwrap();
        for part in [below, range(Bytes::gib(6), Bytes::gib(1))] {
            map.unmap(part).unwrap();
        }
        map.unmap(range(Bytes(Bytes::gib(5).0 - Bytes::mib(2).0), Bytes::mib(2))).unwrap();
        assert_eq!(release(&mut map, all), arena.taken());
    }

    #[test]
    fn what_is_not_there_is_not_unmapped_twice() {
        let (mut arena, mut map) = Arena::new(true);
        let page = range(Bytes::gib(4), Bytes::gib(1));
        map.map(page, Caching::WriteBack, || arena.frame()).unwrap();
        for _ in 0..2 {
            map.unmap(page).unwrap();
            map.unmap(range(Bytes::ZERO, Bytes::tib(1))).unwrap();
        }
        let half = range(Bytes::gib(4), Bytes::mib(512));
        let at = DIRECT_MAP_BASE + Bytes::gib(4).0;
        let why = Why::WithinNote(RESERVED);
        assert_eq!(map.unmap(half), Err(Stopped { at, why, flushed: true }));
        assert_eq!(release(&mut map, page), arena.taken());
    }

    #[test]
    fn refuses_what_the_window_or_the_frames_do_not_suffice_for() {
        let (mut arena, mut map) = Arena::new(true);
        let last = range(Bytes(DIRECT_MAP_BYTES - (2 << 20)), Bytes::mib(2));
        assert_eq!(map.map(last, Caching::WriteBack, || None), Err(MapError::NoTableFrame(last)));
        map.map(last, Caching::WriteBack, || arena.frame()).unwrap();
        assert!(mapped(&map, last));
        let beyond = range(Bytes(DIRECT_MAP_BYTES), Bytes::mib(2));
        assert_eq!(
            map.map(beyond, Caching::WriteBack, || arena.frame()),
            Err(MapError::BeyondDirectMap(beyond))
        );
        assert!(!map.is_mapped(beyond.start()));
        assert!(!map.is_mapped(Pfn::LIMIT));
    }
}
