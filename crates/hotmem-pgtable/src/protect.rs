//! Changes the flags of a range's pages.

use crate::batch::Batch;
use crate::entry::Entry;
use crate::error::{StopReason, Stopped, StoppedBy};
use crate::format::Format;
use crate::level::Kind;
use crate::located::{LocatedEntries, LocatedEntry};
use crate::mmu::{Change, Flush, Mmu};
use crate::owner::Owner;
use crate::page_tables::PageTables;
use crate::range::VirtRange;
use crate::split::split;
use crate::walk::{Next, Visit, walk};
use hotmem_invariant::OrRecordViolation;

impl<M: Mmu> PageTables<'_, M> {
    /// Changes the flags of all pages in `range`. No Accessed or Dirty bit is lost, and entries
    /// that are not present stay as they are. If a large page is only partly in the range, splits
    /// it, with a table from the owner and a flush. If any page has changed, flushes once at the
    /// end.
    ///
    /// # Errors
    /// [`Stopped`] if the range is not canonical, a table or entry is malformed, a large page
    /// cannot be split, or the MMU refuses.
    pub fn protect(
        &mut self,
        range: VirtRange,
        change: Change<M::Format>,
        owner: &mut impl Owner<M::Format>,
    ) -> Result<(), StoppedBy<M>> {
        let span = self.span(range)?;
        let mut protect =
            Protect { change, owner, batch: self.batch, has_changed: false, stopped: None };
        let walked = walk(&mut self.mmu, &mut protect, self.space, span);
        protect.commit(&mut self.mmu);
        let (stopped, has_changed) = (protect.stopped, protect.has_changed);
        let flush = Flush { range, tables: false };
        let flushed = if has_changed { self.mmu.flush(flush) } else { Ok(()) };
        match (stopped.map_or(walked, Err), flushed) {
            (Ok(()), Ok(())) => Ok(()),
            (Ok(()), Err(fault)) => {
                let address = range.last().wrapping_add(1);
                Err(Stopped { address, reason: StopReason::Mmu(fault), is_flushed: false })
            }
            (Err(stopped), flushed) => Err(Stopped { is_flushed: flushed.is_ok(), ..stopped }),
        }
    }
}

struct Protect<'a, M: Mmu, O> {
    change: Change<M::Format>,
    owner: &'a mut O,
    batch: &'a mut Batch<M::Format>,
    has_changed: bool,
    /// If the MMU refused an entry of a batch: the page of that entry, and the reason.
    stopped: Option<StoppedBy<M>>,
}

impl<M: Mmu, O: Owner<M::Format>> Protect<'_, M, O> {
    fn commit(&mut self, mmu: &mut M) {
        if self.batch.is_empty() {
            return;
        }
        let entries_done = match mmu.protect(self.batch, self.change) {
            Ok(()) => self.batch.len(),
            Err(error) => {
                // `address_of` returns `Some`, because the batch is not empty.
                let address = self
                    .batch
                    .address_of(error.entries_done)
                    .or_record_violation()
                    .unwrap_or_default();
                self.stopped = Some(Stopped::new(address, StopReason::Mmu(error.fault)));
                error.entries_done
            }
        };
        self.has_changed |= entries_done > 0;
        self.batch.clear();
    }
}

impl<M: Mmu, O: Owner<M::Format>> Visit<M> for Protect<'_, M, O> {
    fn visit_lowest(
        &mut self,
        mmu: &mut M,
        located: LocatedEntries<&[Entry<M::Format>]>,
    ) -> Result<(), StoppedBy<M>> {
        let (change, level) = (self.change, located.level);
        // Entries above the lowest level come here only if they map pages.
        let is_page = |entry: Entry<M::Format>| match M::Format::LOWEST_ARE_PAGES {
            true => entry.is_present(),
            false => entry.is_page(level),
        };
        for mut located in
            located.runs_where(|entry| is_page(entry) && change.apply(entry) != entry)
        {
            loop {
                let added = self.batch.extend(located);
                if self.batch.is_full() {
                    self.commit(mmu);
                    self.stopped.map_or(Ok(()), Err)?;
                }
                if added == located.entries.len() {
                    break;
                }
                located = located.part(added..located.entries.len());
            }
        }
        Ok(())
    }

    fn visit(
        &mut self,
        mmu: &mut M,
        located: LocatedEntry<M::Format>,
        covered: bool,
    ) -> Result<Next, StoppedBy<M>> {
        match located.kind() {
            Kind::Empty | Kind::Software => Ok(Next::Continue),
            Kind::Malformed => {
                Err(Stopped::new(located.virt, StopReason::Malformed(located.entry)))
            }
            Kind::Table(table) => Ok(Next::Descend(table)),
            Kind::Page if covered => {
                self.visit_lowest(mmu, located.as_entries())?;
                Ok(Next::Continue)
            }
            Kind::Page => Ok(Next::Descend(split(mmu, &located, self.owner)?)),
        }
    }
}
