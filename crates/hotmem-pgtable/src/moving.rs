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
use crate::range::VirtRange;
use crate::space::PageTables;
use crate::sync::Ordering;
use crate::walk::slot_at;
use hotmem::{Bytes, Pfn};

/// Pages that no processor uses: to be copied, and [placed](Moving::place) elsewhere. When this is
/// dropped they are shown again, those that were not placed where they were.
#[must_use = "the pages cannot be used until this is dropped"]
pub struct Moving<'b, T: Tables, F: Flusher> {
    mmu: Native<T, F>,
    batch: &'b mut Batch,
}

impl<'b, T: Tables, F: Flusher> PageTables<'b, Native<T, F>> {
    /// Takes pages out of sight, each named by an address within it, and none twice: as many
    /// of them as a batch holds. One flush, unless they reach from the first address to the last.
    ///
    /// The caller holds the pages' lock until they are shown again.
    ///
    /// # Errors
    /// [`Stopped`] at an address that is no page; nothing is changed.
    pub fn begin_move(
        mut self,
        pages: impl IntoIterator<Item = u64>,
    ) -> Result<Moving<'b, T, F>, Stopped<NativeFault>> {
        self.gather(pages)?;
        let at = self.batch.get(0).map_or(0, |slot| slot.virt);
        let cleared = self.mmu.get_and_clear(self.batch);
        self.batch.truncate(cleared.map_or_else(|halted| halted.done, |()| usize::MAX));
        let flushed = self.flush_gathered();
        // Dropped on failure: all that is out of sight is shown again.
        let moving = Moving { mmu: self.mmu, batch: self.batch };
        match cleared.map_err(|halted| halted.fault).and(flushed) {
            Ok(()) => Ok(moving),
            Err(fault) => Err(Stopped::before(at, Why::Mmu(fault))),
        }
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
        let pages = || self.batch.slots().flat_map(Slots::each).filter_map(page);
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
}

impl<T: Tables, F: Flusher> Drop for Moving<'_, T, F> {
    fn drop(&mut self) {
        for slots in self.batch.slots() {
            let Some(table) = self.mmu.table(slots.at.table()) else { continue };
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
    }
}

fn page(slot: Slot) -> Option<VirtRange> {
    VirtRange::new(slot.virt, slot.level.entry_bytes()).ok()
}

/// From the first page to the last, wherever between they are; `None` if that is everything.
fn hull<I: Iterator<Item = VirtRange>>(pages: impl Fn() -> I) -> Option<VirtRange> {
    let start = pages().map(VirtRange::start).min()?;
    let last = pages().map(VirtRange::last).max()?;
    VirtRange::new(start, Bytes((last - start).checked_add(1)?)).ok()
}
