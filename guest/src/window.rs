//! A window of virtual addresses, behind each page of which there may be any frame.
//!
//! Pages of 4 KiB in a part of the address space that nobody else maps anything in. A frame is
//! moved by moving its page: whoever uses the page sees the same bytes at the same address.

use crate::owned::NoTable;
use crate::tables::{FrameTables, Kernel};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use hotmem::{Bytes, Pfn};
use hotmem_pgtable::{
    Batch, Change, Covered, Entry, Flags, Flush, Kind, Level, Mmu, Moving, Native, PageTables, Run,
    Slot, Space, Tables, Unmap, VirtRange, slot_at,
};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = Level::L1.entry_bytes().0;
/// The most pages of a window: what one entry of the root maps.
pub const MAX_PAGES: u64 = Level::L4.entry_bytes().0 / PAGE_BYTES;

/// A page that was never used: the processor says when that changes.
pub const UNUSED: Flags = Flags::PRESENT.union(Flags::WRITABLE);
/// The first of the bits that the processor leaves to the kernel: the frame stays where it is.
const PINNED: Flags = Flags::from_bits_retain(1 << 9);

/// How all processors are made to forget.
pub type FlushAll = fn(Flush);

/// A window. Pages are numbered from its start.
#[derive(Debug)]
pub struct Window {
    tables: FrameTables,
    space: Space,
    base: u64,
    flush: FlushAll,
    batch: Batch,
}

impl Window {
    /// A window onto the addresses from `base` on, which is where an entry of the root begins.
    #[must_use]
    pub const fn new(tables: FrameTables, space: Space, base: u64, flush: FlushAll) -> Self {
        Window { tables, space, base, flush, batch: Batch::new() }
    }

    /// Where a page is seen.
    #[must_use]
    pub const fn address(&self, page: u64) -> u64 {
        self.base + page % MAX_PAGES * PAGE_BYTES
    }

    /// The page that an address lies in.
    #[must_use]
    pub fn page_of(&self, address: u64) -> Option<u64> {
        let page = address.checked_sub(self.base)? / PAGE_BYTES;
        (page < MAX_PAGES).then_some(page)
    }

    /// Puts a frame behind a page that has none, and makes the tables that are missing.
    ///
    /// # Errors
    /// [`NoTable`]; nothing is mapped.
    pub fn map(
        &mut self,
        page: u64,
        frame: Pfn,
        flags: Flags,
        new_table: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), NoTable> {
        let virt = self.range(page..page.checked_add(1).ok_or(NoTable)?).ok_or(NoTable)?;
        let run = Run { virt, entry: Entry::new(frame, flags), level: Level::L1 };
        let mapped = self.page_tables().map(run, &mut Kernel { new_table, unmapped: |_| {} });
        mapped.map(|_| ()).map_err(|_| NoTable)
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

    /// Takes pages out of sight, as many as a batch holds, to be moved. `None`, and nothing is
    /// done, if one of them has no frame.
    pub fn begin_move(
        &mut self,
        pages: impl IntoIterator<Item = u64>,
    ) -> Option<Moving<'_, FrameTables, FlushAll>> {
        let base = self.base;
        let addresses = pages.into_iter().map(|page| base + page % MAX_PAGES * PAGE_BYTES);
        let Window { tables, space, flush, batch, .. } = self;
        PageTables::new(Native::new(*tables, *flush), *space, batch).begin_move(addresses).ok()
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
        let address = Some(page).filter(|&page| page < MAX_PAGES).map(|page| self.address(page))?;
        slot_at(&mmu, self.space, address).ok().filter(|slot| slot.kind() == Kind::Page)
    }

    fn range(&self, pages: Range<u64>) -> Option<VirtRange> {
        let count = pages.end.checked_sub(pages.start)?;
        let last = pages.end <= MAX_PAGES;
        VirtRange::new(self.address(pages.start), Bytes(count * PAGE_BYTES)).ok().filter(|_| last)
    }

    fn page_tables(&mut self) -> PageTables<'_, Native<FrameTables, FlushAll>> {
        PageTables::new(Native::new(self.tables, self.flush), self.space, &mut self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame_words::FrameWords;

    /// Memory for tables: frame 1 is the root, the others come as they are asked for.
    struct Arena {
        frames: Vec<[u64; 512]>,
        next: u64,
    }

    const BASE: u64 = 0xffff_f000_0000_0000;
    const USED: Flags = UNUSED.union(Flags::USED);

    impl Arena {
        fn new() -> (Arena, Box<Window>) {
            let mut frames = vec![[u64::MAX; 512]; 12];
            frames[1] = [0; 512];
            let memory = FrameWords::at_offset(frames.as_mut_ptr().expose_provenance());
            // SAFETY: the frames live as long as the test and are reached through the window only.
            let tables = unsafe { FrameTables::new(memory) };
            let space = Space::new(pfn(1), Level::L4);
            (Arena { frames, next: 2 }, Box::new(Window::new(tables, space, BASE, |_| {})))
        }

        fn frame(&mut self) -> Option<Pfn> {
            let frame = self.next;
            self.next += 1;
            (frame < self.frames.len() as u64).then(|| pfn(frame))
        }
    }

    fn pfn(number: u64) -> Pfn {
        Pfn::new(number).unwrap()
    }

    #[test]
    fn pages_keep_their_frames_apart() {
        let (mut arena, mut window) = Arena::new();
        let pages = [0, 1, 511, 512, 512 * 512 - 1, 512 * 512, MAX_PAGES - 1];
        for (frame, &page) in (1000..).zip(&pages) {
            assert_eq!(window.frame(page), None);
            window.map(page, pfn(frame), UNUSED, || arena.frame()).unwrap();
            assert_eq!(window.page_of(window.address(page) + 4095), Some(page));
        }
        // One for all; two for each of the pages 0, 512 * 512 and the last; one more for 512 and
        // for 512 * 512 - 1.
        assert_eq!(arena.next, 2 + 1 + 3 * 2 + 2);
        for (frame, &page) in (1000..).zip(&pages) {
            assert_eq!(window.frame(page), Some(pfn(frame)), "page {page}");
        }
        assert_eq!((window.frame(2), window.frame(MAX_PAGES)), (None, None));
        for beyond in [MAX_PAGES, u64::MAX] {
            assert_eq!(window.map(beyond, pfn(1), UNUSED, || None), Err(NoTable));
        }
        assert_eq!((window.page_of(BASE - 1), window.page_of(u64::MAX)), (None, None));
    }

    #[test]
    fn pages_are_moved_pinned_and_unmapped() {
        let (mut arena, mut window) = Arena::new();
        for page in 0..3 {
            window.map(page, pfn(100 + page), USED, || arena.frame()).unwrap();
        }
        window.pin(1, true);
        let mut moving = window.begin_move([1, 2]).unwrap();
        assert_eq!(moving.page(1).unwrap().entry.frame(Level::L1), Some(pfn(102)));
        assert!(moving.place(1, pfn(200)));
        drop(moving);
        assert!(window.begin_move([0, 3]).is_none());
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
            [(100, 2), (200, 1)].map(|(at, n)| { hotmem::PfnRange::with_len(pfn(at), n).unwrap() })
        );
        window.unmap(0..3, |_| panic!("nothing is left"));
        // Nothing comes of changing what is not there.
        window.pin(2, true);
        assert_eq!((window.frame(2), window.is_pinned(2)), (None, false));
    }

    #[test]
    fn without_tables_nothing_is_mapped() {
        let (mut arena, mut window) = Arena::new();
        assert_eq!(window.map(3, pfn(100), UNUSED, || None), Err(NoTable));
        let mut one = [arena.frame(), None].into_iter();
        assert_eq!(window.map(3, pfn(100), UNUSED, || one.next().flatten()), Err(NoTable));
        assert_eq!(window.frame(3), None);
        window.map(3, pfn(100), UNUSED, || arena.frame()).unwrap();
        assert_eq!(window.frame(3), Some(pfn(100)));
    }
}
