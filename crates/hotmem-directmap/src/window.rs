//! A window of virtual addresses, behind each page of which there may be any frame.
//!
//! Pages of 4 KiB in a part of the address space that nobody else maps anything in. A frame is
//! moved by moving its page: whoever uses the page sees the same bytes at the same address.

use crate::area::Area;
use crate::tables::Kernel;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    Batch, Change, Covered, Entry, Flags, Flusher, Kind, Level, Mmu, MoveError, Moving, Native,
    NativeFault, PageTables, Run, Slot, Space, Stopped, Tables, Unmap, VirtRange, slot_at,
};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = Level::L1.entry_bytes().0;

/// A page that was never used: the processor says when that changes.
pub const UNUSED: Flags = Flags::PRESENT.union(Flags::WRITABLE);
/// The first of the bits that the processor leaves to the kernel: the frame stays where it is.
const PINNED: Flags = Flags::from_bits_retain(1 << 9);

/// A window. Pages are numbered from its start.
#[derive(Debug)]
pub struct Window<T, F> {
    tables: T,
    space: Space,
    area: Area,
    flush: F,
    batch: Batch,
}

/// Why a page was not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// The window has no such page.
    NoSuchPage(u64),
    /// The page tables refused: there is no frame for a table, or there is something behind the
    /// page already.
    Tables(Stopped<NativeFault>),
}

impl<T, F> Window<T, F> {
    /// A window onto the addresses of `area`, below a root of four levels. `flush` makes all
    /// processors forget.
    #[must_use]
    pub const fn new(tables: T, root: Pfn, area: Area, flush: F) -> Self {
        let space = Space::new(root, Level::L4);
        Window { tables, space, area, flush, batch: Batch::new() }
    }

    /// How many pages it has.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.area.bytes().0 / PAGE_BYTES
    }

    /// Where a page is seen; the number wraps at the window's end.
    #[must_use]
    pub const fn address(&self, page: u64) -> u64 {
        self.area.base() + page % self.pages() * PAGE_BYTES
    }

    /// The page that an address lies in.
    #[must_use]
    pub fn page_of(&self, address: u64) -> Option<u64> {
        let page = address.checked_sub(self.area.base())? / PAGE_BYTES;
        (page < self.pages()).then_some(page)
    }
}

impl<T: Tables + Copy, F: Flusher + Copy> Window<T, F> {
    /// Puts a frame behind a page that has none, and makes the tables that are missing.
    ///
    /// # Errors
    /// [`WindowError`]; nothing is mapped.
    pub fn map(
        &mut self,
        page: u64,
        frame: Pfn,
        flags: Flags,
        new_table: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), WindowError> {
        let virt = self.range(page..page.saturating_add(1)).ok_or(WindowError::NoSuchPage(page))?;
        let run = Run { virt, entry: Entry::new(frame, flags), level: Level::L1 };
        let mapped = self.page_tables().map(run, &mut Kernel { new_table, unmapped: |_| {} });
        mapped.map(|_| ()).map_err(WindowError::Tables)
    }

    /// Takes the frames away from behind pages and tells of each run of them. It may be used for
    /// something else when this has returned: the pages are flushed then.
    pub fn unmap(&mut self, pages: Range<u64>, unmapped: impl FnMut(Run)) {
        let how = Unmap { tables: Covered::Keep, ignore_used: true, dying: false };
        if let Some(range) = self.range(pages) {
            let mut kernel = Kernel { new_table: || None, unmapped };
            // Pages of 4 KiB below tables of the window's: nothing there can refuse.
            let _ = self.page_tables().unmap_range(range, how, &mut kernel);
        }
    }

    /// Moves pages, as many as a batch holds: see [`PageTables::move_pages`].
    ///
    /// # Errors
    /// One of them has no frame, and nothing is done; or pages could not be shown again.
    pub fn move_pages(
        &mut self,
        pages: impl IntoIterator<Item = u64>,
        copy: impl FnOnce(&mut Moving<'_, T, F>),
    ) -> Result<(), MoveError> {
        let (base, count) = (self.area.base(), self.pages());
        let addresses = pages.into_iter().map(|page| base + page % count * PAGE_BYTES);
        let Window { tables, space, flush, batch, .. } = self;
        PageTables::new(Native::new(*tables, *flush), *space, batch).move_pages(addresses, copy)
    }

    /// The frame behind a page.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<Pfn> {
        let slot = self.slot(page)?;
        slot.entry.frame(slot.level)
    }

    /// Whether the page was written to since this was last asked. It is as if it never was once
    /// it is flushed, which is the caller's to do.
    pub fn take_dirty(&mut self, page: u64) -> bool {
        let Some(slot) = self.slot(page) else { return false };
        let Some(table) = self.tables.table(slot.at.table()) else { return false };
        // Relaxed: the one word says it all, and the flush orders what follows.
        let before = table[slot.at.index()].fetch_and(!Flags::USED.bits(), Relaxed);
        Entry::from_bits(before).flags().contains(Flags::DIRTY)
    }

    /// Whether the frame behind the page has to stay where it is.
    #[must_use]
    pub fn is_pinned(&self, page: u64) -> bool {
        self.slot(page).is_some_and(|slot| slot.entry.flags().contains(PINNED))
    }

    /// Has it stay, or lets it go.
    pub fn pin(&mut self, page: u64, pinned: bool) {
        let none = Flags::empty();
        let (set, clear) = if pinned { (PINNED, none) } else { (none, PINNED) };
        if let (Some(slot), Ok(change)) = (self.slot(page), Change::new(set, clear)) {
            // Processors do not look at the bit: there is nothing to flush.
            self.batch.clear();
            self.batch.push(slot);
            let _ = Native::new(self.tables, self.flush).protect(&self.batch, change);
        }
    }

    /// The page's entry, if it has a frame.
    fn slot(&self, page: u64) -> Option<Slot> {
        let mmu = Native::new(self.tables, self.flush);
        let address =
            Some(page).filter(|&page| page < self.pages()).map(|page| self.address(page))?;
        slot_at(&mmu, self.space, address).ok().filter(|slot| slot.kind() == Kind::Page)
    }

    fn range(&self, pages: Range<u64>) -> Option<VirtRange> {
        let count = pages.end.checked_sub(pages.start)?;
        let last = pages.end <= self.pages();
        VirtRange::new(self.address(pages.start), Bytes(count * PAGE_BYTES)).ok().filter(|_| last)
    }

    fn page_tables(&mut self) -> PageTables<'_, Native<T, F>> {
        PageTables::new(Native::new(self.tables, self.flush), self.space, &mut self.batch)
    }
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WindowError::NoSuchPage(page) => write!(f, "the window has no page {page}"),
            WindowError::Tables(stopped) => write!(f, "page tables: {stopped}"),
        }
    }
}

impl core::error::Error for WindowError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, pfn};
    use hotmem_pgtable::{Flush, Why};

    const BASE: u64 = 0xffff_f000_0000_0000;
    const USED: Flags = UNUSED.union(Flags::USED);

    type ArenaWindow<'a> = Window<&'a Arena, fn(Flush)>;

    /// A window of 512 GiB.
    fn window(arena: &Arena) -> Box<ArenaWindow<'_>> {
        let area = Area::new(BASE, Bytes::gib(512)).unwrap();
        Box::new(Window::new(arena, arena.root(), area, |_| {}))
    }

    #[test]
    fn pages_keep_their_frames_apart() {
        let arena = Arena::new(12);
        let mut window = window(&arena);
        let all = window.pages();
        let pages = [0, 1, 511, 512, 512 * 512 - 1, 512 * 512, all - 1];
        for (frame, &page) in (1000..).zip(&pages) {
            assert_eq!(window.frame(page), None);
            window.map(page, pfn(frame), UNUSED, || arena.frame()).unwrap();
            assert_eq!(window.page_of(window.address(page) + 4095), Some(page));
        }
        // One for all; two for each of the pages 0, 512 * 512 and the last; one more for 512 and
        // for 512 * 512 - 1.
        assert_eq!(arena.taken().len(), 1 + 3 * 2 + 2);
        for (frame, &page) in (1000..).zip(&pages) {
            assert_eq!(window.frame(page), Some(pfn(frame)), "page {page}");
        }
        assert_eq!((window.frame(2), window.frame(all)), (None, None));
        for beyond in [all, u64::MAX] {
            let refused = window.map(beyond, pfn(1), UNUSED, || None);
            assert_eq!(refused, Err(WindowError::NoSuchPage(beyond)));
        }
        assert_eq!((window.page_of(BASE - 1), window.page_of(u64::MAX)), (None, None));
    }

    #[test]
    fn pages_are_moved_pinned_and_unmapped() {
        let arena = Arena::new(12);
        let mut window = window(&arena);
        for page in 0..3 {
            window.map(page, pfn(100 + page), USED, || arena.frame()).unwrap();
        }
        window.pin(1, true);
        let moved = window.move_pages([1, 2], |moving| {
            assert_eq!(moving.page(1).unwrap().entry.frame(Level::L1), Some(pfn(102)));
            assert!(moving.place(1, pfn(200)));
        });
        assert_eq!(moved, Ok(()));
        let refused = window.move_pages([0, 3], |_| unreachable!("page 3 has no frame"));
        assert!(matches!(refused, Err(MoveError::Refused(_))), "{refused:?}");
        let frames = [0, 1, 2].map(|page| window.frame(page).unwrap().number());
        assert_eq!(frames, [100, 101, 200]);
        assert!(window.is_pinned(1) && !window.is_pinned(2));
        window.pin(1, false);
        assert!(!window.is_pinned(1));
        assert_eq!([2, 2].map(|page| window.take_dirty(page)), [true, false]);
        let mut told = Vec::new();
        window.unmap(0..3, |run| told.push(run.frames().unwrap()));
        assert_eq!(
            told,
            [(100, 2), (200, 1)]
                .map(|(at, n)| { hotmem_addr::PfnRange::with_len(pfn(at), n).unwrap() })
        );
        window.unmap(0..3, |_| panic!("nothing is left"));
        // Nothing comes of changing what is not there.
        window.pin(2, true);
        assert_eq!((window.frame(2), window.is_pinned(2)), (None, false));
    }

    #[test]
    fn without_tables_nothing_is_mapped() {
        let arena = Arena::new(12);
        let mut window = window(&arena);
        let why = Why::NoTableFrame(Entry::EMPTY);
        let refused = Err(WindowError::Tables(Stopped { at: BASE + 0x3000, why, flushed: true }));
        assert_eq!(window.map(3, pfn(100), UNUSED, || None), refused);
        let mut one = [arena.frame(), None].into_iter();
        assert_eq!(window.map(3, pfn(100), UNUSED, || one.next().flatten()), refused);
        assert_eq!(window.frame(3), None);
        window.map(3, pfn(100), UNUSED, || arena.frame()).unwrap();
        assert_eq!(window.frame(3), Some(pfn(100)));
    }
}
