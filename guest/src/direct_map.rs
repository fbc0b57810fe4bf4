//! The direct map: all usable physical memory at one offset in the upper half of the address
//! space, in 2 MiB pages, and nothing else.
//!
//! Unplugged memory must not be read or written, not even by speculation, so it must not be
//! mapped: the map comes and goes with the memory. Unmapping clears entries and keeps the tables,
//! so that mapping the same range again cannot fail; [`PageTables::release_tables`] gives them
//! back once the memory is gone for good.
//!
//! Unmapping shows only after the TLB is flushed, which is the caller's to do.

use crate::frame_words::{FRAME_WORDS, FrameWords};
use core::fmt;
use core::ops::Range;
use hotmem::{Bytes, Pfn, PfnRange};

/// Where physical address 0 appears: the start of the upper half.
pub const DIRECT_MAP_BASE: u64 = 0xffff_8000_0000_0000;
/// Physical memory that the direct map has room for: all of the upper half but its last 16 TiB,
/// in which the kernel itself lies.
pub const DIRECT_MAP_BYTES: u64 = 112 << 40;

const PAGE_FRAMES: u64 = 512;
const ENTRIES: u64 = FRAME_WORDS;
const ENTRY_BYTES: u64 = 8;
/// Frames that one page directory maps.
const DIRECTORY_FRAMES: u64 = ENTRIES * PAGE_FRAMES;
/// Frames that one page-directory-pointer table maps.
const POINTER_TABLE_FRAMES: u64 = ENTRIES * DIRECTORY_FRAMES;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
/// Accessed and dirty, set from the start so that no access has to set them.
const USED: u64 = 1 << 5 | 1 << 6;
const LARGE_PAGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

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
}

/// The page tables of the direct map.
pub struct PageTables {
    root: Pfn,
    memory: FrameWords,
}

impl PageTables {
    /// The direct map within the page tables at `root`.
    ///
    /// # Safety
    /// The root, every table below it, and every frame handed to [`PageTables::map`] are reached
    /// through `memory` for as long as the value lives, and nobody else writes to them.
    #[must_use]
    pub unsafe fn new(root: Pfn, memory: FrameWords) -> Self {
        PageTables { root, memory }
    }

    /// Page-table frames that mapping `range` would take.
    #[must_use]
    pub fn tables_needed(&self, range: PfnRange) -> u64 {
        let range = range.align_outward(PAGE_FRAMES);
        range
            .chunks(POINTER_TABLE_FRAMES)
            .map(|part| match self.pointer_table(part.start()) {
                None => 1 + part.align_outward(DIRECTORY_FRAMES).frames() / DIRECTORY_FRAMES,
                Some(table) => {
                    let missing = |part: &PfnRange| {
                        self.entry(table, pointer_index(part.start())) & PRESENT == 0
                    };
                    part.chunks(DIRECTORY_FRAMES).filter(missing).count() as u64
                }
            })
            .sum()
    }

    /// Maps the 2 MiB pages that `range` touches, taking frames for the tables that are missing.
    /// Returns how many bytes of tables it wrote.
    ///
    /// # Errors
    /// [`MapError`]. If frames run out, what was mapped so far stays mapped.
    pub fn map(
        &mut self,
        range: PfnRange,
        caching: Caching,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<Bytes, MapError> {
        let range = range.align_outward(PAGE_FRAMES);
        if range.end().phys_addr() > DIRECT_MAP_BYTES {
            return Err(MapError::BeyondDirectMap(range));
        }
        let caching = match caching {
            Caching::WriteBack => 0,
            Caching::Uncached => WRITE_THROUGH | CACHE_DISABLE,
        };
        let flags = PRESENT | WRITABLE | USED | LARGE_PAGE | caching;
        let mut written = 0;
        for part in range.chunks(DIRECTORY_FRAMES).filter(|part| !part.is_empty()) {
            let no_frame = MapError::NoTableFrame(part);
            let index = root_index(part.start());
            let pointers = match self.table_below(self.root, index) {
                Some(table) => table,
                None => {
                    let new = table_frame().ok_or(no_frame)?;
                    written += self.fill(new, 0..ENTRIES, |_| 0);
                    written += self.link(self.root, index, new);
                    new
                }
            };
            let first = directory_index(part.start());
            let pages = first..first + part.frames() / PAGE_FRAMES;
            let page = |index| (part.start().phys_addr() + ((index - first) << 21)) | flags;
            let index = pointer_index(part.start());
            written += match self.table_below(pointers, index) {
                Some(directory) => self.fill(directory, pages, page),
                None => {
                    let new = table_frame().ok_or(no_frame)?;
                    let entry = |index| if pages.contains(&index) { page(index) } else { 0 };
                    self.fill(new, 0..ENTRIES, entry) + self.link(pointers, index, new)
                }
            };
        }
        Ok(Bytes(written))
    }

    /// Clears the pages that lie wholly within `range`, and keeps the tables.
    pub fn unmap(&mut self, range: PfnRange) {
        for part in range.align_inward(PAGE_FRAMES).chunks(DIRECTORY_FRAMES) {
            if let Some(directory) = self.directory(part.start()) {
                let first = directory_index(part.start());
                self.fill(directory, first..first + part.frames() / PAGE_FRAMES, |_| 0);
            }
        }
    }

    /// Whether the frame is mapped.
    #[must_use]
    pub fn is_mapped(&self, pfn: Pfn) -> bool {
        pfn.phys_addr() < DIRECT_MAP_BYTES
            && self
                .directory(pfn)
                .is_some_and(|directory| self.entry(directory, directory_index(pfn)) & PRESENT != 0)
    }

    /// Gives back the tables that served `range` and now map nothing.
    ///
    /// The CPU may remember where a table was, so `flush` is called before the first is given.
    pub fn release_tables(
        &mut self,
        range: PfnRange,
        flush: impl FnOnce(),
        mut free: impl FnMut(Pfn),
    ) {
        // Linked through their first words, as addresses: entries that map nothing.
        let mut released = 0;
        for part in range.align_outward(PAGE_FRAMES).chunks(POINTER_TABLE_FRAMES) {
            let Some(table) = self.pointer_table(part.start()) else { continue };
            for part in part.chunks(DIRECTORY_FRAMES) {
                let index = pointer_index(part.start());
                if let Some(directory) = self.table_below(table, index)
                    && self.is_empty(directory)
                {
                    self.set_entry(table, index, 0);
                    self.set_entry(directory, 0, released);
                    released = directory.phys_addr();
                }
            }
            if self.is_empty(table) {
                self.set_entry(self.root, root_index(part.start()), 0);
                self.set_entry(table, 0, released);
                released = table.phys_addr();
            }
        }
        flush();
        while released != 0 {
            let Some(table) = Pfn::containing(released) else { return };
            released = self.entry(table, 0);
            free(table);
        }
    }

    fn directory(&self, pfn: Pfn) -> Option<Pfn> {
        self.table_below(self.pointer_table(pfn)?, pointer_index(pfn))
    }

    fn pointer_table(&self, pfn: Pfn) -> Option<Pfn> {
        self.table_below(self.root, root_index(pfn))
    }

    fn table_below(&self, table: Pfn, index: u64) -> Option<Pfn> {
        let entry = self.entry(table, index);
        if entry & PRESENT == 0 { None } else { Pfn::containing(entry & ADDRESS) }
    }

    fn is_empty(&self, table: Pfn) -> bool {
        (0..ENTRIES).all(|index| self.entry(table, index) & PRESENT == 0)
    }

    fn entry(&self, table: Pfn, index: u64) -> u64 {
        // SAFETY: `new`'s caller vouches for the tables; all indices are below `ENTRIES`.
        unsafe { self.memory.read(table, index) }
    }

    fn set_entry(&mut self, table: Pfn, index: u64, entry: u64) {
        // SAFETY: as in `entry`, and `&mut self` is the only writer.
        unsafe { self.memory.write(table, index, entry) }
    }

    /// Returns how many bytes it wrote.
    fn fill(&mut self, table: Pfn, indices: Range<u64>, entry: impl Fn(u64) -> u64) -> u64 {
        let bytes = (indices.end - indices.start) * ENTRY_BYTES;
        for index in indices {
            self.set_entry(table, index, entry(index));
        }
        bytes
    }

    /// Puts a table below an entry.
    fn link(&mut self, table: Pfn, index: u64, below: Pfn) -> u64 {
        self.set_entry(table, index, below.phys_addr() | PRESENT | WRITABLE | USED);
        ENTRY_BYTES
    }
}

fn root_index(pfn: Pfn) -> u64 {
    ((DIRECT_MAP_BASE + pfn.phys_addr()) >> 39) % ENTRIES
}

fn pointer_index(pfn: Pfn) -> u64 {
    pfn.number() / DIRECTORY_FRAMES % ENTRIES
}

fn directory_index(pfn: Pfn) -> u64 {
    pfn.number() / PAGE_FRAMES % ENTRIES
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames 1.. of an arena are the tables; frame 0 stays unused so that none has address 0.
    struct Arena {
        frames: Vec<[u64; 512]>,
        next: u64,
        freed: Vec<Pfn>,
    }

    impl Arena {
        /// An arena whose frames hold rubbish, but for an empty root.
        fn new() -> (Arena, PageTables) {
            let mut frames = vec![[u64::MAX; 512]; 32];
            frames[1] = [0; 512];
            let memory = FrameWords::at_offset(frames.as_mut_ptr().expose_provenance());
            // SAFETY: the arena's frames are 4 KiB each, live as long as the test,
            // and are not looked at while the map is in use.
            let map = unsafe { PageTables::new(Pfn::new(1).unwrap(), memory) };
            (Arena { frames, next: 2, freed: Vec::new() }, map)
        }

        fn frame(&mut self) -> Option<Pfn> {
            let frame = self.next;
            self.next += 1;
            (frame < self.frames.len() as u64).then(|| Pfn::new(frame).unwrap())
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

    #[test]
    fn maps_what_was_asked_for_and_no_more() {
        let (mut arena, mut map) = Arena::new();
        let wanted = range(Bytes::mib(1022), Bytes::mib(6));
        assert_eq!(map.tables_needed(wanted), 3);
        let written = map.map(wanted, Caching::WriteBack, || arena.frame()).unwrap();
        assert_eq!(written, Bytes(3 * 4096 + 3 * 8), "each table once, and what leads to it");
        assert_eq!(arena.next, 5);
        assert_eq!(map.map(wanted, Caching::WriteBack, || None), Ok(Bytes(3 * 8)));
        assert!(mapped(&map, wanted));
        assert!(!map.is_mapped(Pfn::containing(Bytes::mib(1021).0).unwrap()));
        assert!(!map.is_mapped(Pfn::containing(Bytes::mib(1028).0).unwrap()));
        assert_eq!(map.tables_needed(range(Bytes::ZERO, Bytes::gib(2))), 0);
        assert_eq!(map.tables_needed(range(Bytes::gib(1), Bytes::gib(2))), 1);
    }

    #[test]
    fn entries_hold_address_and_caching() {
        let (mut arena, mut map) = Arena::new();
        let at = Bytes(0x3f_ffe0_0000);
        map.map(range(at, Bytes::mib(2)), Caching::Uncached, || arena.frame()).unwrap();
        let directory = map.directory(Pfn::containing(at.0).unwrap()).unwrap();
        assert_eq!(map.entry(directory, 511), at.0 | 0xfb);
    }

    #[test]
    fn unmapping_keeps_the_tables_and_releasing_gives_them_back() {
        let (mut arena, mut map) = Arena::new();
        let all = range(Bytes::gib(511), Bytes::gib(2));
        assert_eq!(map.tables_needed(all), 4);
        map.map(all, Caching::WriteBack, || arena.frame()).unwrap();
        map.unmap(all);
        assert!(!mapped(&map, all));
        assert_eq!(map.tables_needed(all), 0);
        map.map(all, Caching::WriteBack, || None).unwrap();
        assert!(mapped(&map, all));

        let (low, high) = all.split_at(Pfn::containing(Bytes::gib(512).0).unwrap());
        let mut flushes = 0;
        map.unmap(high);
        map.release_tables(all, || flushes += 1, |frame| arena.freed.push(frame));
        assert!(mapped(&map, low));
        assert_eq!(arena.freed.len(), 2);
        map.unmap(low);
        map.release_tables(low, || flushes += 1, |frame| arena.freed.push(frame));
        assert_eq!(map.tables_needed(all), 4);
        let mut freed: Vec<u64> = arena.freed.iter().map(|pfn| pfn.number()).collect();
        freed.sort_unstable();
        assert_eq!(freed, (2..arena.next).collect::<Vec<_>>());
        assert_eq!(flushes, 2);
    }

    #[test]
    fn refuses_what_the_window_or_the_frames_do_not_suffice_for() {
        let (mut arena, mut map) = Arena::new();
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
    }
}
