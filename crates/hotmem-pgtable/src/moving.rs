//! Moves pages to other frames while they are in use: clears their entries together, copies the
//! frames, and makes the pages present again.
//!
//! The order ensures that no write is lost. Once an entry is cleared no processor starts to use the
//! page, and after the flush no processor still uses it. Only then does the frame hold all writes,
//! and the cleared entry says whether there were any. A processor that accesses the page meanwhile
//! faults. The fault handler waits for the lock that the mover holds (see [`Mmu`]), and then finds
//! the page present.

use crate::batch::{Batch, Slot, Slots};
use crate::entry::Kind;
use crate::error::{Stopped, Why};
use crate::mmu::{Flush, Mmu, entry_at};
use crate::native::{Flusher, Native, NativeFault, Tables};
use crate::page_tables::PageTables;
use crate::range::VirtRange;
use crate::sync::Ordering;
use crate::walk::slot_at;
use core::fmt;
use hotmem_addr::{Bytes, Pfn};

/// Pages whose entries are cleared, to be copied and [placed](Moving::place) elsewhere.
pub struct Moving<'b, T: Tables, F: Flusher> {
    mmu: Native<T, F>,
    batch: &'b mut Batch,
}

/// The reason why pages were not moved, or not all made present again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveError {
    /// The entries were not cleared. Nothing is changed.
    Refused(Stopped<NativeFault>),
    /// The kernel no longer had the tables of some pages when they were to become present again.
    /// These pages are not present; all others are.
    Hidden {
        /// The first of these pages, with its new entry.
        first: Slot,
        /// The number of these pages.
        pages: usize,
    },
}

impl<T: Tables, F: Flusher> PageTables<'_, Native<T, F>> {
    /// Clears the entries of pages, each named by an address within it and none twice; at most as
    /// many as a batch holds. Then calls `copy`, which copies the pages and [places](Moving::place)
    /// them elsewhere. Afterwards all pages are present again; those that were not placed keep
    /// their frames. Takes one flush, unless the pages span the whole address space.
    ///
    /// The caller holds the pages' lock during the call.
    ///
    /// # Errors
    /// [`MoveError::Refused`] if an address is not a page, before `copy` is called;
    /// [`MoveError::Hidden`] if pages could not be made present again.
    pub fn move_pages<R>(
        mut self,
        pages: impl IntoIterator<Item = u64>,
        copy: impl FnOnce(&mut Moving<'_, T, F>) -> R,
    ) -> Result<R, MoveError> {
        self.gather(pages).map_err(MoveError::Refused)?;
        let at = self.batch.get(0).map_or(0, |slot| slot.virt);
        let cleared = self.mmu.get_and_clear(self.batch);
        self.batch.truncate(cleared.map_or_else(|halted| halted.done, |()| usize::MAX));
        let flushed = self.flush_gathered();
        let mut moving = Moving { mmu: self.mmu, batch: self.batch };
        let copied =
            cleared.map_err(|halted| halted.fault).and(flushed).map(|()| copy(&mut moving));
        moving.show()?;
        copied.map_err(|fault| MoveError::Refused(Stopped::before(at, Why::Mmu(fault))))
    }

    fn gather(&mut self, pages: impl IntoIterator<Item = u64>) -> Result<(), Stopped<NativeFault>> {
        for page in pages {
            if self.batch.is_full() {
                break;
            }
            let slot = slot_at(&self.mmu, self.space, page)?;
            if slot.kind() != Kind::Page {
                return Err(Stopped::before(page, Why::NotAPage(slot.entry)));
            }
            self.batch.push(slot);
        }
        Ok(())
    }

    fn flush_gathered(&mut self) -> Result<(), NativeFault> {
        let pages = || self.batch.slots().flat_map(Slots::each).map(page);
        let mut flush = |range| self.mmu.flush(Flush { range, tables: false });
        match hull(pages) {
            Some(range) => flush(range),
            None => pages().try_for_each(flush),
        }
    }
}

impl<T: Tables, F: Flusher> Moving<'_, T, F> {
    /// Returns the number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Returns whether there are no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Returns page `index`, in the order in which the pages were named, with its final Accessed
    /// and Dirty bits.
    #[must_use]
    pub fn page(&self, index: usize) -> Option<Slot> {
        self.batch.get(index)
    }

    /// Makes page `index` map the frames from `frame` on, to which it was copied, with the same
    /// flags, Accessed and Dirty included. Returns `false` if there is no such page or it cannot
    /// begin there.
    pub fn place(&mut self, index: usize, frame: Pfn) -> bool {
        let moved = self.page(index).and_then(|slot| slot.entry.moved_to(frame, slot.level));
        let Some((entry, moved)) = self.batch.entry_mut(index).zip(moved) else { return false };
        *entry = moved;
        true
    }

    /// Makes all pages present again, and empties the batch.
    fn show(&mut self) -> Result<(), MoveError> {
        let mut hidden = None;
        for slots in self.batch.slots() {
            let Some(table) = self.mmu.table(slots.at.table()) else {
                for slot in slots.each() {
                    let (first, pages) = hidden.unwrap_or((slot, 0));
                    hidden = Some((first, pages + 1));
                }
                continue;
            };
            for slot in slots.each() {
                // It is present already, because it was named twice.
                if !entry_at(table, slot.at.index()).is_empty() {
                    continue;
                }
                // Release: a processor that finds the page also sees the copy.
                table[slot.at.index()].store(slot.entry.bits(), Ordering::Release);
            }
        }
        self.batch.clear();
        hidden.map_or(Ok(()), |(first, pages)| Err(MoveError::Hidden { first, pages }))
    }
}

/// Pages are left here only if `copy` panics. The panic takes precedence over an error of `show`.
impl<T: Tables, F: Flusher> Drop for Moving<'_, T, F> {
    fn drop(&mut self) {
        let _panicking = self.show();
    }
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveError::Refused(stopped) => stopped.fmt(f),
            MoveError::Hidden { first, pages } => {
                let (virt, table) = (first.virt, first.at.table());
                write!(f, "{pages} pages from {virt:#x} on are no longer present: ")?;
                write!(f, "the kernel has no table at {table} any more")
            }
        }
    }
}

impl core::error::Error for MoveError {}

fn page(slot: Slot) -> VirtRange {
    VirtRange::around(slot.virt, slot.level.entry_bytes())
}

/// Returns the smallest range that covers all pages, or `None` if that is the whole address space.
fn hull<I: Iterator<Item = VirtRange>>(pages: impl Fn() -> I) -> Option<VirtRange> {
    let start = pages().map(VirtRange::start).min()?;
    let last = pages().map(VirtRange::last).max()?;
    VirtRange::new(start, Bytes((last - start).checked_add(1)?)).ok()
}
