//! Moves pages to other frames while processors use them: clears their entries together, copies the
//! frames, and makes the pages present again.
//!
//! This order ensures that no write is lost. After an entry is cleared, no processor starts to use
//! the page, and after the flush, no processor still uses it. So after the flush, the frame has all
//! writes, and the value of the cleared entry says whether the page was written. A processor that
//! accesses the page meanwhile faults. The fault handler waits for the lock that the caller holds
//! (see [`Mmu`]), and then finds the page present.

use crate::batch::Batch;
use crate::error::{StopReason, Stopped, StoppedBy};
use crate::format::Format;
use crate::level::Kind;
use crate::located::{LocatedEntries, LocatedEntry};
use crate::mmu::{Flush, Mmu, entry_at};
use crate::native::{Flusher, Native, NativeFault, Tables};
use crate::page_tables::PageTables;
use crate::range::VirtRange;
use crate::sync::Ordering;
use crate::walk::find_entry;
use core::fmt;
use hotmem_addr::{Bytes, Pfn};

/// Pages that are being moved: their entries are cleared, and the caller copies the pages and
/// [places](MovedPages::place) them in other frames.
pub struct MovedPages<'b, T: Tables, F: Flusher> {
    mmu: Native<T, F>,
    batch: &'b mut Batch<F::Format>,
}

/// The reason why no page was moved, or why some pages were not made present again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveError<F: Format> {
    /// The operation was refused. All pages are present, in their previous frames.
    Refused(Stopped<NativeFault<F>, F>),
    /// When the pages were to become present again, the kernel no longer had the tables of some of
    /// them. These pages are not present; all others are.
    NotPresent {
        /// The first of the pages that are not present, with its new entry.
        first: LocatedEntry<F>,
        /// The number of pages that are not present.
        pages: usize,
    },
}

impl<T: Tables, F: Flusher> PageTables<'_, Native<T, F>> {
    /// Moves pages to other frames. `pages` has an address within each page, and names no page
    /// twice; only the first 512 are moved. Clears the entries of the pages, and then calls `copy`,
    /// which copies the pages and [places](MovedPages::place) them in other frames. After that, makes
    /// all pages present again; a page that was not placed keeps its frame. Flushes once, unless
    /// the pages span the whole address space.
    ///
    /// The caller holds the lock of the pages during the call (see [`Mmu`]). On aarch64 and riscv64,
    /// `copy` also makes the instruction caches see the copy of a page that can be executed.
    ///
    /// # Errors
    /// [`MoveError::Refused`] if no page is mapped at an address; `copy` is not called then.
    /// [`MoveError::NotPresent`] if some pages could not be made present again.
    pub fn move_pages<R>(
        mut self,
        pages: impl IntoIterator<Item = u64>,
        copy: impl FnOnce(&mut MovedPages<'_, T, F>) -> R,
    ) -> Result<R, MoveError<F::Format>> {
        self.add_pages(pages).map_err(MoveError::Refused)?;
        let first_address = self.batch.get(0).map_or(0, |located| located.virt);
        let cleared = self.mmu.get_and_clear(self.batch);
        self.batch.truncate(cleared.map_or_else(|error| error.entries_done, |()| usize::MAX));
        let flushed = self.flush_pages();
        let mut moving = MovedPages { mmu: self.mmu, batch: self.batch };
        let copied = cleared.map_err(|error| error.fault).and(flushed).map(|()| copy(&mut moving));
        moving.make_present()?;
        copied.map_err(|fault| {
            MoveError::Refused(Stopped::new(first_address, StopReason::Mmu(fault)))
        })
    }

    fn add_pages(
        &mut self,
        pages: impl IntoIterator<Item = u64>,
    ) -> Result<(), StoppedBy<Native<T, F>>> {
        for page in pages {
            if self.batch.is_full() {
                break;
            }
            let located = find_entry(&self.mmu, self.space, page)?;
            if located.kind() != Kind::Page {
                return Err(Stopped::new(page, StopReason::NotAPage(located.entry)));
            }
            self.batch.push(located);
        }
        Ok(())
    }

    fn flush_pages(&mut self) -> Result<(), NativeFault<F::Format>> {
        let pages = || self.batch.entry_runs().flat_map(LocatedEntries::each).map(page_range);
        let mut flush = |range| self.mmu.flush(Flush { range, tables: false });
        match covering_range(pages) {
            Some(range) => flush(range),
            None => pages().try_for_each(flush),
        }
    }
}

impl<T: Tables, F: Flusher> MovedPages<'_, T, F> {
    /// Returns the number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Returns whether no page is being moved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Returns page `index`, with its final Accessed and Dirty bits. The pages are in the order in
    /// which the caller named them.
    #[must_use]
    pub fn page(&self, index: usize) -> Option<LocatedEntry<F::Format>> {
        self.batch.get(index)
    }

    /// Places page `index` in the frames from `frame` on, to which the caller has copied it. The
    /// page keeps its flags, Accessed and Dirty included. Returns `false`, and changes nothing, if
    /// no such page is being moved, or if a page of this size cannot begin at `frame`.
    pub fn place(&mut self, index: usize, frame: Pfn) -> bool {
        let moved =
            self.page(index).and_then(|located| located.entry.moved_to(frame, located.level));
        let Some((entry, moved)) = self.batch.entry_mut(index).zip(moved) else { return false };
        *entry = moved;
        true
    }

    /// Makes all pages present again, and empties the batch.
    fn make_present(&mut self) -> Result<(), MoveError<F::Format>> {
        let mut absent = None;
        for located in self.batch.entry_runs() {
            let Some(table) = self.mmu.table(located.first_addr.table()) else {
                for located in located.each() {
                    let (first, pages) = absent.unwrap_or((located, 0));
                    absent = Some((first, pages + 1));
                }
                continue;
            };
            for located in located.each() {
                // A page that was named twice is present already, so keep its entry.
                if !entry_at::<F::Format>(table, located.addr.index()).is_empty() {
                    continue;
                }
                // Release: a processor that finds the page also sees the copy.
                table[located.addr.index()].store(located.entry.bits(), Ordering::Release);
            }
        }
        let pages = || self.batch.entry_runs().flat_map(LocatedEntries::each).map(page_range);
        match covering_range(pages) {
            Some(range) => self.mmu.flusher().publish(range),
            None => pages().for_each(|range| self.mmu.flusher().publish(range)),
        }
        self.batch.clear();
        absent.map_or(Ok(()), |(first, pages)| Err(MoveError::NotPresent { first, pages }))
    }
}

/// Makes the pages present again if `copy` panics. In all other cases, the batch is empty already. The
/// panic takes precedence over an error of `make_present`.
impl<T: Tables, F: Flusher> Drop for MovedPages<'_, T, F> {
    fn drop(&mut self) {
        let _ = self.make_present();
    }
}

impl<F: Format> fmt::Display for MoveError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveError::Refused(stopped) => stopped.fmt(f),
            MoveError::NotPresent { first, pages } => {
                let (virt, table) = (first.virt, first.addr.table());
                write!(f, "{pages} pages from {virt:#x} on are no longer present: ")?;
                write!(f, "the kernel has no table at {table} any more")
            }
        }
    }
}

impl<F: Format> core::error::Error for MoveError<F> {}

fn page_range<F: Format>(located: LocatedEntry<F>) -> VirtRange {
    VirtRange::around(located.virt, located.level.entry_span())
}

/// Returns the smallest range that covers all pages, or `None` if that range is the whole address
/// space.
fn covering_range<I: Iterator<Item = VirtRange>>(pages: impl Fn() -> I) -> Option<VirtRange> {
    let start = pages().map(VirtRange::start).min()?;
    let last = pages().map(VirtRange::last).max()?;
    VirtRange::new(start, Bytes((last - start).checked_add(1)?)).ok()
}
