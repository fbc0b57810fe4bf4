//! Unmaps a range of an address space that is in use.
//!
//! Entries are gathered into a batch and cleared together. A table that the range covers wholly
//! counts as one entry of the batch: it is unhooked, and read after the flush, as ordinary memory.

use crate::batch::{Batch, Slot, Slots};
use crate::entry::{Entry, Kind, Level};
use crate::error::{Stopped, Why};
use crate::mmu::{Flush, Mmu};
use crate::owner::Owner;
use crate::page_tables::PageTables;
use crate::range::VirtRange;
use crate::runs::Runs;
use crate::sound::{check_roots, is_sound, unhooking_pays};
use crate::space::Space;
use crate::split::split;
use crate::walk::{Next, Place, Visit, walk, walk_table};
use hotmem_addr::Pfn;
use hotmem_invariant::Known;

/// The options of unmapping a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unmap {
    /// How to treat tables that the range covers wholly.
    pub tables: Covered,
    /// Whether final Accessed and Dirty bits may be lost, as for anonymous memory.
    pub ignore_used: bool,
    /// Whether no processor uses the address space any more, so that plain stores may clear
    /// entries.
    pub dying: bool,
}

/// How to treat tables that a range covers wholly. To unhook a table, the lock of its entries is
/// not enough: the caller must also ensure that no other CPU is about to fill it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Covered {
    /// Unhook them at the highest possible level, and free them. They must belong to this address
    /// space alone.
    #[default]
    Free,
    /// Keep them, so that mapping again needs no new tables.
    Keep,
    /// Unhook a table, or clear its entries and keep it, whichever costs less. The estimate reads
    /// the tables once more for each level.
    Cheapest,
}

impl<M: Mmu> PageTables<'_, M> {
    /// Unmaps `range` and reports to the owner what was mapped, in runs. A large page that is only
    /// partly in the range is split, with a flush. Flushes once at the end, and once for each batch
    /// of 512 entries that contains tables, which are freed after that flush.
    ///
    /// The caller holds the range's lock (see [`Mmu`]). If tables are freed, no other CPU may be
    /// about to fill them.
    ///
    /// Cost: one batch for each 512 entries and covered tables, and reading the tables.
    ///
    /// # Errors
    /// [`Stopped`]
    pub fn unmap_range(
        &mut self,
        range: VirtRange,
        how: Unmap,
        owner: &mut impl Owner,
    ) -> Result<(), Stopped<M::Fault>> {
        let span = self.span(range)?;
        check_roots(&self.mmu, self.space, span)?;
        let (space, batch) = (self.space, &mut *self.batch);
        let runs = Runs::default();
        let mut unmapper =
            Unmapper { space, range, how, batch, owner, runs, unflushed: false, unhooking: false };
        let walked = walk(&mut self.mmu, &mut unmapper, space, span);
        // All entries in the batch are at lower addresses than an error of the walk.
        let done = unmapper.commit(&mut self.mmu).and(walked);
        unmapper.batch.clear();
        unmapper.runs.finish(unmapper.owner);
        match unmapper.flush(&mut self.mmu, false) {
            Ok(()) => done,
            Err(fault) => {
                let after = Stopped::before(range.last().wrapping_add(1), Why::Mmu(fault));
                Err(Stopped { flushed: false, ..done.err().unwrap_or(after) })
            }
        }
    }
}

struct Unmapper<'a, O> {
    space: Space,
    range: VirtRange,
    how: Unmap,
    batch: &'a mut Batch,
    owner: &'a mut O,
    runs: Runs,
    unflushed: bool,
    /// Whether the batch contains entries of tables.
    unhooking: bool,
}

impl<M: Mmu, O: Owner> Visit<M> for Unmapper<'_, O> {
    #[inline]
    fn lowest(&mut self, mmu: &mut M, mut slots: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>> {
        loop {
            let added = self.batch.extend(slots);
            if self.batch.is_full() {
                self.commit(mmu)?;
            }
            if added == slots.entries.len() {
                return Ok(());
            }
            slots = slots.part(added..slots.entries.len());
        }
    }

    fn visit(&mut self, mmu: &mut M, slot: Slot, covered: bool) -> Result<Next, Stopped<M::Fault>> {
        let refused = |why| Err(Stopped::before(slot.virt, why));
        match slot.kind() {
            Kind::Empty => return Ok(Next::On),
            Kind::Malformed => return refused(Why::Malformed(slot.entry)),
            Kind::Software if !covered => return refused(Why::WithinSoftwareEntry(slot.entry)),
            Kind::Page if !covered => return Ok(Next::Into(split(mmu, &slot, self.owner)?)),
            // Malformed entries below it are reported during the descent.
            Kind::Table(table) if !(covered && self.is_unhooked(mmu, slot)) => {
                return Ok(Next::Into(table));
            }
            Kind::Table(_) => self.unhooking = true,
            Kind::Software | Kind::Page => {}
        }
        self.lowest(mmu, slot.alone())?;
        Ok(Next::On)
    }
}

impl<O: Owner> Unmapper<'_, O> {
    /// Returns whether a table that is wholly covered is unhooked, with all below it.
    fn is_unhooked<M: Mmu>(&self, mmu: &mut M, slot: Slot) -> bool {
        match self.how.tables {
            Covered::Free => is_sound(mmu, slot, self.space),
            Covered::Keep => false,
            Covered::Cheapest => unhooking_pays(mmu, slot, self.space),
        }
    }

    /// Clears the batch's entries and reports what they held; does nothing if the batch is empty.
    fn commit<M: Mmu>(&mut self, mmu: &mut M) -> Result<(), Stopped<M::Fault>> {
        let cleared = match self.how {
            _ if self.batch.is_empty() => return Ok(()),
            Unmap { dying: true, .. } => mmu.get_and_clear_full(self.batch),
            Unmap { ignore_used: true, .. } => mmu.clear(self.batch),
            _ => mmu.get_and_clear(self.batch),
        };
        let stopped = cleared.err().map(|halted| {
            // The batch is not empty.
            let at = self.batch.address_of(halted.done).known().unwrap_or(self.range.start());
            self.batch.truncate(halted.done);
            Stopped::before(at, Why::Mmu(halted.fault))
        });
        self.unflushed |= !self.batch.is_empty();
        let reported = self.report(mmu);
        self.batch.clear();
        // An error of `report` takes precedence, because it lies at lower addresses.
        reported.and(stopped.map_or(Ok(()), Err))
    }

    /// Reports the cleared entries of the batch to the owner.
    fn report<M: Mmu>(&mut self, mmu: &mut M) -> Result<(), Stopped<M::Fault>> {
        let (mut fault, mut flushed) = (None, true);
        if core::mem::take(&mut self.unhooking) && !self.batch.is_empty() {
            let flush = self.flush(mmu, true);
            flushed = flush.is_ok();
            fault = flush.and_then(|()| mmu.reclaim(self.batch)).err();
        }
        let (space, mut result, mut end) = (self.space, Ok(()), 0);
        for slots in self.batch.slots() {
            if slots.level == Level::L1 {
                self.runs.add(slots, self.owner);
            } else {
                for slot in slots.each() {
                    let Some(place) = Place::below(slot, space) else {
                        self.runs.add(slot.alone(), self.owner);
                        continue;
                    };
                    let runs = core::mem::take(&mut self.runs);
                    let mut unhooked =
                        UnhookedTables { owner: self.owner, runs, free: fault.is_none() };
                    result = result.and(unhooked.table(mmu, place));
                    self.runs = unhooked.runs;
                }
            }
            end = slots.end();
        }
        match fault {
            Some(fault) => result.and(Err(Stopped { at: end, why: Why::Mmu(fault), flushed })),
            None => result,
        }
    }

    fn flush<M: Mmu>(&mut self, mmu: &mut M, tables: bool) -> Result<(), M::Fault> {
        if core::mem::take(&mut self.unflushed) {
            mmu.flush(Flush { range: self.range, tables })?;
        }
        Ok(())
    }
}

/// Reads tables that have become ordinary memory, and frees them.
pub(crate) struct UnhookedTables<'a, O> {
    pub(crate) owner: &'a mut O,
    pub(crate) runs: Runs,
    pub(crate) free: bool,
}

impl<O: Owner> UnhookedTables<'_, O> {
    pub(crate) fn table<M: Mmu>(
        &mut self,
        mmu: &mut M,
        place: Place,
    ) -> Result<(), Stopped<M::Fault>> {
        walk_table(mmu, self, place, place.whole)?;
        Visit::<M>::leave(self, place.table);
        Ok(())
    }
}

impl<M: Mmu, O: Owner> Visit<M> for UnhookedTables<'_, O> {
    #[inline]
    fn lowest(&mut self, _: &mut M, slots: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>> {
        self.runs.add(slots, self.owner);
        Ok(())
    }

    fn visit(&mut self, _: &mut M, slot: Slot, _: bool) -> Result<Next, Stopped<M::Fault>> {
        match slot.kind() {
            Kind::Table(table) => return Ok(Next::Into(table)),
            Kind::Malformed => {
                return Err(Stopped::before(slot.virt, Why::Malformed(slot.entry)));
            }
            _ => self.runs.add(slot.alone(), self.owner),
        }
        Ok(Next::On)
    }

    fn leave(&mut self, table: Pfn) {
        if self.free { self.owner.free_table(table) } else { self.owner.stuck_table(table) }
    }
}
