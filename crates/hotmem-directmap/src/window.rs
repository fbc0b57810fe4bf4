//! Maps single 4 KiB pages in a virtual area, the window, and replaces the frames behind them.
//!
//! Each page of the window can map any frame. To move a page, the window copies its contents to
//! another frame and changes the page's entry, so users of the page see the same bytes at the same
//! address.

use crate::area::Area;
use crate::tables::CallbackOwner;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    Attributes, Batch, Change, CoveredTables, Entry, Flusher, Format, Kind, Level, LocatedEntry,
    Mmu, MoveError, MovedPages, Native, NativeFault, PageTables, Run, Space, Stopped, Tables,
    Unmap, VirtRange, find_entry,
};

/// The number of bytes in a page.
pub const PAGE_BYTES: u64 = Level::L1.entry_span().0;

/// A virtual area whose pages can map any frames. Pages are numbered from the start of the area.
#[derive(Debug)]
pub struct Window<'b, T, F: Flusher> {
    tables: T,
    space: Space<F::Format>,
    area: Area,
    flusher: F,
    batch: &'b mut Batch<F::Format>,
}

/// The reason why a page was not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WindowError<F: Format> {
    /// The page lies beyond the end of the window.
    NoSuchPage(u64),
    /// No frame was available for a page table, or the page is mapped already.
    Tables(Stopped<NativeFault<F>, F>),
}

impl<'b, T, F: Flusher> Window<'b, T, F> {
    /// Makes a window over `area`, in the page tables with this root. `flusher` flushes the TLBs of
    /// all processors. `batch` takes 20 KiB, so a kernel keeps it in a `static`.
    #[must_use]
    pub fn new(
        tables: T,
        root: Pfn,
        area: Area,
        flusher: F,
        batch: &'b mut Batch<F::Format>,
    ) -> Self {
        Window { tables, space: area.space(root), area, flusher, batch }
    }

    /// Returns the number of pages.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.area.bytes().0 / PAGE_BYTES
    }

    /// Returns the virtual address of a page. Beyond the window's end, page numbers begin again
    /// with page 0.
    #[must_use]
    pub const fn address(&self, page: u64) -> u64 {
        self.area.base() + page % self.pages() * PAGE_BYTES
    }

    /// Returns the page that contains `address`, or `None` if `address` lies outside the window.
    #[must_use]
    pub fn page_of(&self, address: u64) -> Option<u64> {
        let page = address.checked_sub(self.area.base())? / PAGE_BYTES;
        (page < self.pages()).then_some(page)
    }
}

impl<T: Tables + Copy, F: Flusher + Copy> Window<'_, T, F> {
    /// Maps `frame` at a page that is not mapped yet, and makes missing tables. With
    /// [`Attributes::UNUSED_KERNEL_DATA`], the processor marks the page when it is accessed; on
    /// x86-64, it must support no-execute pages, and the kernel must have enabled them (`EFER.NXE`).
    ///
    /// # Errors
    /// [`WindowError`]. Then `page` is as it was before.
    pub fn map(
        &mut self,
        page: u64,
        frame: Pfn,
        attributes: Attributes,
        new_table: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), WindowError<F::Format>> {
        let virt = self.range(page..page.saturating_add(1)).ok_or(WindowError::NoSuchPage(page))?;
        let flags = F::Format::page_flags(attributes, Level::L1);
        let run = Run { virt, entry: Entry::new(frame, flags), level: Level::L1 };
        let mut owner = CallbackOwner { new_table, unmapped: |_: Run<F::Format>| {} };
        let mapped = self.page_tables().map(run, &mut owner);
        mapped.map(|_| ()).map_err(WindowError::Tables)
    }

    /// Unmaps pages, flushes the TLBs, and passes each run of unmapped pages to `unmapped`. After
    /// this call no TLB maps the frames, so the caller may use them for something else.
    pub fn unmap(&mut self, pages: Range<u64>, unmapped: impl FnMut(Run<F::Format>)) {
        let options =
            Unmap { tables: CoveredTables::Keep, ignore_accessed_and_dirty: true, is_dying: false };
        if let Some(range) = self.range(pages) {
            let mut owner = CallbackOwner { new_table: || None, unmapped };
            // Unmapping fails only if it must split a large page, and the window's tables hold
            // 4 KiB pages only.
            let _ = self.page_tables().unmap_range(range, options, &mut owner);
        }
    }

    /// Moves pages to other frames, at most as many pages as a batch holds: see
    /// [`PageTables::move_pages`].
    ///
    /// # Errors
    /// [`MoveError::Refused`] if a page is not mapped; then nothing is changed. Another
    /// [`MoveError`] if pages could not be made present again.
    pub fn move_pages(
        &mut self,
        pages: impl IntoIterator<Item = u64>,
        copy: impl FnOnce(&mut MovedPages<'_, T, F>),
    ) -> Result<(), MoveError<F::Format>> {
        let (base, count) = (self.area.base(), self.pages());
        let addresses = pages.into_iter().map(|page| base + page % count * PAGE_BYTES);
        let Window { tables, space, flusher, batch, .. } = self;
        PageTables::new(Native::new(*tables, *flusher), *space, batch).move_pages(addresses, copy)
    }

    /// Returns the frame that a page maps, or `None` if the page is not mapped.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<Pfn> {
        let located = self.page_entry(page)?;
        located.entry.frame(located.level)
    }

    /// Returns whether the page was written since the last call, and clears its Accessed and Dirty
    /// bits. The caller must then flush the page from the TLBs, because a processor with the old
    /// entry in its TLB does not set Dirty again.
    pub fn take_dirty(&mut self, page: u64) -> bool {
        let Some(located) = self.page_entry(page) else { return false };
        let Some(table) = self.tables.table(located.addr.table()) else { return false };
        let unused = |bits| Some(Entry::<F::Format>::from_bits(bits).without_use().bits());
        // Relaxed: the result depends on this word alone, and the caller's flush orders later
        // accesses to the page.
        let before = table[located.addr.index()].fetch_update(Relaxed, Relaxed, unused);
        before.is_ok_and(|bits| Entry::<F::Format>::from_bits(bits).is_dirty())
    }

    /// Returns whether the page's frame must not be replaced.
    #[must_use]
    pub fn is_pinned(&self, page: u64) -> bool {
        self.page_entry(page)
            .is_some_and(|located| located.entry == located.entry.with(F::Format::kernel_flag()))
    }

    /// Sets whether the page's frame must not be replaced. Does nothing if the page is not mapped.
    pub fn pin(&mut self, page: u64, pinned: bool) {
        let (mark, none) = (F::Format::kernel_flag(), Entry::<F::Format>::EMPTY.flags());
        let (set, clear) = if pinned { (mark, none) } else { (none, mark) };
        if let (Some(located), Ok(change)) = (self.page_entry(page), Change::new(set, clear)) {
            // Processors ignore the mark, so no TLB needs a flush.
            self.batch.clear();
            self.batch.push(located);
            let _ = Native::new(self.tables, self.flusher).protect(self.batch, change);
        }
    }

    /// Returns the page's entry, or `None` if the page is not mapped.
    fn page_entry(&self, page: u64) -> Option<LocatedEntry<F::Format>> {
        let mmu = Native::new(self.tables, self.flusher);
        let address =
            Some(page).filter(|&page| page < self.pages()).map(|page| self.address(page))?;
        find_entry(&mmu, self.space, address).ok().filter(|located| located.kind() == Kind::Page)
    }

    fn range(&self, pages: Range<u64>) -> Option<VirtRange> {
        let count = pages.end.checked_sub(pages.start)?;
        let is_inside = pages.end <= self.pages();
        let range = VirtRange::new(self.address(pages.start), Bytes(count * PAGE_BYTES)).ok();
        range.filter(|_| is_inside)
    }

    fn page_tables(&mut self) -> PageTables<'_, Native<T, F>> {
        PageTables::new(Native::new(self.tables, self.flusher), self.space, self.batch)
    }
}

impl<F: Format> fmt::Display for WindowError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WindowError::NoSuchPage(page) => write!(f, "the window has no page {page}"),
            WindowError::Tables(stopped) => write!(f, "page tables: {stopped}"),
        }
    }
}

impl<F: Format> core::error::Error for WindowError<F> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Processor, each_format, pfn};
    use hotmem_pgtable::StopReason;

    const BASE: u64 = 0xffff_f000_0000_0000;
    const USED: Attributes = Attributes::KERNEL_DATA;
    const UNUSED: Attributes = Attributes::UNUSED_KERNEL_DATA;

    type ArenaWindow<'a, F> = Window<'a, &'a Arena, Processor<'a, F>>;

    /// Returns a window of 512 GiB.
    fn window<F: Format>(arena: &Arena) -> ArenaWindow<'_, F> {
        let area = Area::new(BASE, Bytes::gib(512)).unwrap();
        let batch = Box::leak(Box::new(Batch::new()));
        Window::new(arena, arena.root(), area, Processor::new(arena), batch)
    }

    #[test]
    fn each_page_maps_its_own_frame() {
        fn check<F: Format>() {
            let arena = Arena::new(12);
            let mut window = window::<F>(&arena);
            let all = window.pages();
            let pages = [0, 1, 511, 512, 512 * 512 - 1, 512 * 512, all - 1];
            for (frame, &page) in (1000..).zip(&pages) {
                assert_eq!(window.frame(page), None);
                window.map(page, pfn(frame), UNUSED, || arena.frame()).unwrap();
                assert_eq!(window.page_of(window.address(page) + 4095), Some(page));
            }
            // One L3 table serves all pages. Pages 0, 512 * 512 and `all - 1` need an L2 and an L1
            // table each. Pages 512 and 512 * 512 - 1 need one more L1 table each.
            assert_eq!(arena.used_frames().len(), 1 + 3 * 2 + 2);
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
        each_format!(check);
    }

    #[test]
    fn pages_are_moved_pinned_and_unmapped() {
        fn check<F: Format>() {
            let arena = Arena::new(12);
            let mut window = window::<F>(&arena);
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
            let mut unmapped = Vec::new();
            window.unmap(0..3, |run| unmapped.push(run.frames().unwrap()));
            assert_eq!(
                unmapped,
                [(100, 2), (200, 1)].map(|(first, frames)| {
                    hotmem_addr::PfnRange::with_len(pfn(first), frames).unwrap()
                })
            );
            window.unmap(0..3, |_| panic!("pages 0 to 2 are unmapped already"));
            // Pinning a page that is not mapped does nothing.
            window.pin(2, true);
            assert_eq!((window.frame(2), window.is_pinned(2)), (None, false));
        }
        each_format!(check);
    }

    #[test]
    fn a_page_is_not_mapped_if_a_table_cannot_be_allocated() {
        fn check<F: Format>() {
            let arena = Arena::new(12);
            let mut window = window::<F>(&arena);
            let reason = StopReason::NoTableFrame(Entry::EMPTY);
            let refused = Err(WindowError::Tables(Stopped {
                address: BASE + 0x3000,
                reason,
                is_flushed: true,
            }));
            assert_eq!(window.map(3, pfn(100), UNUSED, || None), refused);
            let mut one_table = [arena.frame(), None].into_iter();
            assert_eq!(window.map(3, pfn(100), UNUSED, || one_table.next().flatten()), refused);
            assert_eq!(window.frame(3), None);
            window.map(3, pfn(100), UNUSED, || arena.frame()).unwrap();
            assert_eq!(window.frame(3), Some(pfn(100)));
        }
        each_format!(check);
    }
}
