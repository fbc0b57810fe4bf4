//! Unmaps a range of an address space that is in use.
//!
//! Entries are collected in a batch and cleared together. A table that the range covers wholly
//! takes one entry of the batch, the one that points to it: the table is unhooked by clearing that
//! entry, and read after the flush, as ordinary memory.

use crate::batch::Batch;
use crate::entry::Entry;
use crate::error::{StopReason, Stopped, StoppedBy};
use crate::format::Format;
use crate::level::{Kind, Level};
use crate::located::{LocatedEntries, LocatedEntry};
use crate::mmu::{Flush, Mmu};
use crate::owner::Owner;
use crate::page_tables::PageTables;
use crate::range::VirtRange;
use crate::run_builder::RunBuilder;
use crate::space::Space;
use crate::split::split;
use crate::walk::{Next, TableSpan, Visit, walk, walk_table};
use crate::well_formed::{check_roots, is_cheaper_to_unhook, is_well_formed};
use hotmem_addr::Pfn;
use hotmem_invariant::OrRecordViolation;

/// Options of [`unmap_range`](PageTables::unmap_range).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unmap {
    /// What happens to tables that the range covers wholly.
    pub tables: CoveredTables,
    /// Whether the final Accessed and Dirty bits may be lost, as for anonymous memory.
    pub ignore_accessed_and_dirty: bool,
    /// Whether no processor uses the address space any more, so that plain stores may clear
    /// entries.
    pub is_dying: bool,
}

/// What happens to tables that a range covers wholly. If tables may be unhooked, the lock of the
/// range is not enough: the caller must also ensure that no other CPU is about to fill them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CoveredTables {
    /// Unhook the tables at the highest possible level, and free them. The tables must belong only
    /// to this address space.
    #[default]
    Free,
    /// Clear the entries of the tables and keep the tables, so that mapping again needs no new
    /// ones.
    Keep,
    /// Unhook and free a table, or clear its entries and keep it, whichever costs less. The
    /// estimate reads each table once more for each level above it.
    Cheapest,
}

impl<M: Mmu> PageTables<'_, M> {
    /// Unmaps `range`, and passes the pages that were mapped to the owner, in runs. If a large
    /// page is only partly in the range, splits it, with a table from the owner and a flush.
    /// Flushes once at the end, and once for each batch of 512 entries that unhooks tables; the
    /// tables are freed after that flush.
    ///
    /// The caller holds the lock of the range (see [`Mmu`]). If tables may be freed, the caller
    /// also ensures that no other CPU is about to fill them.
    ///
    /// Cost: one batch for each 512 cleared entries, and reading the tables.
    ///
    /// # Errors
    /// [`Stopped`] if the range is not canonical, a table or entry is malformed, the range ends
    /// within an entry with data of the kernel, a large page cannot be split, or the MMU
    /// refuses.
    pub fn unmap_range(
        &mut self,
        range: VirtRange,
        options: Unmap,
        owner: &mut impl Owner<M::Format>,
    ) -> Result<(), StoppedBy<M>> {
        let span = self.span(range)?;
        check_roots(&self.mmu, self.space, span)?;
        let (space, batch) = (self.space, &mut *self.batch);
        let run = RunBuilder::default();
        let mut unmapper = Unmapper {
            space,
            range,
            options,
            batch,
            owner,
            run,
            needs_flush: false,
            has_table_entries: false,
        };
        let walked = walk(&mut self.mmu, &mut unmapper, space, span);
        // Commit also after an error of the walk: all entries of the batch are at lower addresses.
        let result = unmapper.commit(&mut self.mmu).and(walked);
        unmapper.batch.clear();
        unmapper.run.finish(unmapper.owner);
        match unmapper.flush(&mut self.mmu, false) {
            Ok(()) => result,
            Err(fault) => {
                let at_end = Stopped::new(range.last().wrapping_add(1), StopReason::Mmu(fault));
                Err(Stopped { is_flushed: false, ..result.err().unwrap_or(at_end) })
            }
        }
    }
}

struct Unmapper<'a, O, F: Format> {
    space: Space<F>,
    range: VirtRange,
    options: Unmap,
    batch: &'a mut Batch<F>,
    owner: &'a mut O,
    run: RunBuilder<F>,
    needs_flush: bool,
    /// Whether the batch has entries that point to tables.
    has_table_entries: bool,
}

impl<M: Mmu, O: Owner<M::Format>> Visit<M> for Unmapper<'_, O, M::Format> {
    #[inline]
    fn visit_lowest(
        &mut self,
        mmu: &mut M,
        mut located: LocatedEntries<&[Entry<M::Format>]>,
    ) -> Result<(), StoppedBy<M>> {
        loop {
            let added = self.batch.extend(located);
            if self.batch.is_full() {
                self.commit(mmu)?;
            }
            if added == located.entries.len() {
                return Ok(());
            }
            located = located.part(added..located.entries.len());
        }
    }

    fn visit(
        &mut self,
        mmu: &mut M,
        located: LocatedEntry<M::Format>,
        covered: bool,
    ) -> Result<Next, StoppedBy<M>> {
        let refused = |reason| Err(Stopped::new(located.virt, reason));
        match located.kind() {
            Kind::Empty => return Ok(Next::Continue),
            Kind::Malformed => return refused(StopReason::Malformed(located.entry)),
            Kind::Software if !covered => {
                return refused(StopReason::WithinSoftwareEntry(located.entry));
            }
            Kind::Page if !covered => return Ok(Next::Descend(split(mmu, &located, self.owner)?)),
            // If the tables below are malformed, the walk into them reports the error.
            Kind::Table(table) if !(covered && self.is_unhooked(mmu, located)) => {
                return Ok(Next::Descend(table));
            }
            Kind::Table(_) => self.has_table_entries = true,
            Kind::Software | Kind::Page => {}
        }
        self.visit_lowest(mmu, located.as_entries())?;
        Ok(Next::Continue)
    }
}

impl<O: Owner<F>, F: Format> Unmapper<'_, O, F> {
    /// Returns whether a wholly covered table is to be unhooked, with all tables below it.
    fn is_unhooked<M: Mmu<Format = F>>(&self, mmu: &mut M, located: LocatedEntry<F>) -> bool {
        match self.options.tables {
            CoveredTables::Free => is_well_formed(mmu, located, self.space),
            CoveredTables::Keep => false,
            CoveredTables::Cheapest => is_cheaper_to_unhook(mmu, located, self.space),
        }
    }

    /// Clears the entries of the batch, and passes to the owner what they mapped. Does nothing if
    /// the batch is empty.
    fn commit<M: Mmu<Format = F>>(&mut self, mmu: &mut M) -> Result<(), StoppedBy<M>> {
        let cleared = match self.options {
            _ if self.batch.is_empty() => return Ok(()),
            Unmap { is_dying: true, .. } => mmu.get_and_clear_full(self.batch),
            Unmap { ignore_accessed_and_dirty: true, .. } => mmu.clear(self.batch),
            _ => mmu.get_and_clear(self.batch),
        };
        let stopped = cleared.err().map(|error| {
            // `address_of` returns `Some`, because the batch is not empty.
            let address = self
                .batch
                .address_of(error.entries_done)
                .or_record_violation()
                .unwrap_or(self.range.start());
            self.batch.truncate(error.entries_done);
            Stopped::new(address, StopReason::Mmu(error.fault))
        });
        self.needs_flush |= !self.batch.is_empty();
        let passed = self.pass_to_owner(mmu);
        self.batch.clear();
        // An error of `pass_to_owner` takes precedence, because its address is lower.
        passed.and(stopped.map_or(Ok(()), Err))
    }

    /// Passes what the cleared entries of the batch mapped to the owner.
    fn pass_to_owner<M: Mmu<Format = F>>(&mut self, mmu: &mut M) -> Result<(), StoppedBy<M>> {
        let (mut fault, mut flushed) = (None, true);
        if core::mem::take(&mut self.has_table_entries) && !self.batch.is_empty() {
            let flush = self.flush(mmu, true);
            flushed = flush.is_ok();
            fault = flush.and_then(|()| mmu.reclaim(self.batch)).err();
        }
        let (space, mut result, mut end) = (self.space, Ok(()), 0);
        for located in self.batch.entry_runs() {
            if located.level == Level::L1 {
                self.run.add(located, self.owner);
            } else {
                for located in located.each() {
                    let Some(table_span) = TableSpan::below(located, space) else {
                        self.run.add(located.as_entries(), self.owner);
                        continue;
                    };
                    let run = core::mem::take(&mut self.run);
                    let mut unhooked =
                        UnhookedTables { owner: self.owner, run, may_free: fault.is_none() };
                    result = result.and(unhooked.pass_and_free(mmu, table_span));
                    self.run = unhooked.run;
                }
            }
            end = located.end();
        }
        match fault {
            Some(fault) => result.and(Err(Stopped {
                address: end,
                reason: StopReason::Mmu(fault),
                is_flushed: flushed,
            })),
            None => result,
        }
    }

    fn flush<M: Mmu<Format = F>>(&mut self, mmu: &mut M, tables: bool) -> Result<(), M::Fault> {
        if core::mem::take(&mut self.needs_flush) {
            mmu.flush(Flush { range: self.range, tables })?;
        }
        Ok(())
    }
}

/// Reads tables that were unhooked, passes their pages to the owner, and frees the tables.
pub(crate) struct UnhookedTables<'a, O, F: Format> {
    pub(crate) owner: &'a mut O,
    pub(crate) run: RunBuilder<F>,
    /// Whether the tables have become ordinary memory. Otherwise they are reported as stuck.
    pub(crate) may_free: bool,
}

impl<O: Owner<F>, F: Format> UnhookedTables<'_, O, F> {
    pub(crate) fn pass_and_free<M: Mmu<Format = F>>(
        &mut self,
        mmu: &mut M,
        table_span: TableSpan<F>,
    ) -> Result<(), StoppedBy<M>> {
        walk_table(mmu, self, table_span, table_span.span)?;
        Visit::<M>::leave(self, table_span.table);
        Ok(())
    }
}

impl<M: Mmu, O: Owner<M::Format>> Visit<M> for UnhookedTables<'_, O, M::Format> {
    #[inline]
    fn visit_lowest(
        &mut self,
        _: &mut M,
        located: LocatedEntries<&[Entry<M::Format>]>,
    ) -> Result<(), StoppedBy<M>> {
        self.run.add(located, self.owner);
        Ok(())
    }

    fn visit(
        &mut self,
        _: &mut M,
        located: LocatedEntry<M::Format>,
        _: bool,
    ) -> Result<Next, StoppedBy<M>> {
        match located.kind() {
            Kind::Table(table) => return Ok(Next::Descend(table)),
            Kind::Malformed => {
                return Err(Stopped::new(located.virt, StopReason::Malformed(located.entry)));
            }
            _ => self.run.add(located.as_entries(), self.owner),
        }
        Ok(Next::Continue)
    }

    fn leave(&mut self, table: Pfn) {
        if self.may_free { self.owner.free_table(table) } else { self.owner.stuck_table(table) }
    }
}
