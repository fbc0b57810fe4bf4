//! Pages move to other frames while they are in use: taken out of sight together, copied, and
//! shown again.
//!
//! The order is what keeps every write. Once an entry is cleared no processor begins to use the
//! page, and once that is flushed none still does: then, and not before, the frame holds all that
//! was written, and the entry that came out says whether anything was. Who finds the page missing
//! meanwhile faults; the fault takes the lock that whoever moves the page holds (see [`Mmu`]), and
//! finds the page.

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

/// Pages that no processor uses: to be copied, and [placed](Moving::place) elsewhere.
pub struct Moving<'b, T: Tables, F: Flusher> {
    mmu: Native<T, F>,
    batch: &'b mut Batch,
}

/// Why pages were not moved, or not all of them shown again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveError {
    /// The pages were not taken out of sight. Nothing is changed.
    Refused(Stopped<NativeFault>),
    /// The kernel no longer had the tables of some pages when they were to be shown again. These
    /// pages are not present; all others are shown.
    Hidden {
        /// The first of them, with the entry that it was to get.
        first: Slot,
        /// How many.
        pages: usize,
    },
}

impl<T: Tables, F: Flusher> PageTables<'_, Native<T, F>> {
    /// Takes pages out of sight, each named by an address within it, and none twice: as many
    /// of them as a batch holds. `copy` copies them and [places](Moving::place) them elsewhere;
    /// when it returns, all of them are shown again, those that it did not place where they were.
    /// One flush, unless they reach from the first address to the last.
    ///
    /// The caller holds the pages' lock meanwhile.
    ///
    /// # Errors
    /// [`MoveError::Refused`] if an address is no page, before `copy` is called;
    /// [`MoveError::Hidden`] if pages could not be shown again.
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
    /// How many pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Page `index` in the order in which they were named, with its final Accessed and Dirty bits.
    #[must_use]
    pub fn page(&self, index: usize) -> Option<Slot> {
        self.batch.get(index)
    }

    /// Has page `index` be in other frames, from `frame` on, to which it was copied: with the same
    /// flags, Accessed and Dirty included. Whether there is such a page, and it can begin there.
    pub fn place(&mut self, index: usize, frame: Pfn) -> bool {
        let moved = self.page(index).and_then(|slot| slot.entry.moved_to(frame, slot.level));
        let Some((entry, moved)) = self.batch.entry_mut(index).zip(moved) else { return false };
        *entry = moved;
        true
    }

    /// Shows all pages again, and forgets them.
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
                // Shown already: it was named twice.
                if !entry_at(table, slot.at.index()).is_empty() {
                    continue;
                }
                // Release: who finds the page finds the copy.
                table[slot.at.index()].store(slot.entry.bits(), Ordering::Release);
            }
        }
        self.batch.clear();
        hidden.map_or(Ok(()), |(first, pages)| Err(MoveError::Hidden { first, pages }))
    }
}

/// Pages are left here only where `copy` panics, which takes precedence over pages that cannot be
/// shown.
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
                write!(f, "{pages} pages are not shown again, from {virt:#x} on: ")?;
                write!(f, "the kernel has no table at {table} any more")
            }
        }
    }
}

impl core::error::Error for MoveError {}

fn page(slot: Slot) -> VirtRange {
    VirtRange::around(slot.virt, slot.level.entry_bytes())
}

/// From the first page to the last, wherever between they are; `None` if that is everything.
fn hull<I: Iterator<Item = VirtRange>>(pages: impl Fn() -> I) -> Option<VirtRange> {
    let start = pages().map(VirtRange::start).min()?;
    let last = pages().map(VirtRange::last).max()?;
    VirtRange::new(start, Bytes((last - start).checked_add(1)?)).ok()
}
