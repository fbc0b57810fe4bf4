//! An address space: a root and what is below it.

use crate::batch::{Batch, Slot, Slots};
use crate::entry::{Entry, Kind, Level};
use crate::error::{Stopped, Why};
use crate::mmu::{Change, Flush, Mmu};
use crate::range::{Span, VirtRange};
use crate::run::Run;
use crate::walk::{Next, Visit, walk};
use hotmem::Pfn;

/// The page tables of an address space: where their root is and how many levels there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// The frame of the root.
    pub root: Pfn,
    /// The frame of the root that user mode runs on, if that is another: the kernel then runs on
    /// `root`. So it is for 64-bit guests of Xen PV, and for kernels that hide themselves from user
    /// mode. Its entries of the lower half are those of `root`, and name the same tables.
    pub user_root: Option<Pfn>,
    /// The root's level: [`Level::L4`] or [`Level::L5`].
    pub levels: Level,
}

impl Space {
    /// An address space with one root, of this level.
    #[must_use]
    pub const fn new(root: Pfn, levels: Level) -> Space {
        Space { root, user_root: None, levels }
    }

    /// The same with a second root, for user mode.
    #[must_use]
    pub const fn with_user_root(self, root: Pfn) -> Space {
        Space { user_root: Some(root), ..self }
    }
}

/// Whoever keeps account of pages and of the frames of tables.
pub trait Owner {
    /// These were unmapped, with their last Accessed and Dirty bits. Comes in the order of
    /// addresses. What is behind them may be used for something else when the operation has
    /// returned, not before: only then it is flushed.
    fn unmapped(&mut self, run: Run);

    /// A table is in nobody's use any more: flushed, ordinary memory, its contents undefined.
    fn free_table(&mut self, table: Pfn);

    /// A table is in nobody's use any more, but the machine failed to make it ordinary memory.
    fn stuck_table(&mut self, table: Pfn) {
        let _ = table;
    }

    /// A frame for a table that splits a large page, or `None`.
    fn new_table(&mut self) -> Option<Pfn> {
        None
    }
}

/// An address space on its machine.
pub struct PageTables<'b, M> {
    pub(crate) mmu: M,
    pub(crate) space: Space,
    pub(crate) batch: &'b mut Batch,
}

impl<'b, M: Mmu> PageTables<'b, M> {
    /// An address space, with room for the batches of its changes.
    pub fn new(mmu: M, space: Space, batch: &'b mut Batch) -> Self {
        batch.begin(space);
        PageTables { mmu, space, batch }
    }

    /// The machine.
    pub fn mmu(&mut self) -> &mut M {
        &mut self.mmu
    }

    /// The machine, for good.
    pub fn into_mmu(self) -> M {
        self.mmu
    }

    /// Changes the flags of all pages in `range`; no Accessed or Dirty bit is lost. Large pages
    /// that the range's ends lie in are split, with tables from the owner and a flush for each.
    /// What is not present is left as it is. One flush, if anything changed.
    ///
    /// # Errors
    /// [`Stopped`]
    pub fn protect(
        &mut self,
        range: VirtRange,
        change: Change,
        owner: &mut impl Owner,
    ) -> Result<(), Stopped<M::Fault>> {
        let span = self.span(range)?;
        let mut protect =
            Protect { change, owner, batch: self.batch, changed: false, stopped: None };
        let walked = walk(&mut self.mmu, &mut protect, self.space, span);
        protect.commit(&mut self.mmu);
        let (stopped, changed) = (protect.stopped, protect.changed);
        let flush = Flush { range, tables: false };
        let flushed = if changed { self.mmu.flush(flush) } else { Ok(()) };
        match (stopped.map_or(walked, Err), flushed) {
            (Ok(()), Ok(())) => Ok(()),
            (Ok(()), Err(fault)) => {
                let at = range.last().wrapping_add(1);
                Err(Stopped { at, why: Why::Mmu(fault), flushed: false })
            }
            (Err(stopped), flushed) => Err(Stopped { flushed: flushed.is_ok(), ..stopped }),
        }
    }

    pub(crate) fn span(&self, range: VirtRange) -> Result<Span, Stopped<M::Fault>> {
        let refused = Stopped::before(range.start(), Why::NotCanonical(range));
        Span::of(range, self.space.levels).ok_or(refused)
    }
}

struct Protect<'a, F, O> {
    change: Change,
    owner: &'a mut O,
    batch: &'a mut Batch,
    changed: bool,
    /// The first slot that was not done.
    stopped: Option<Stopped<F>>,
}

impl<F: Copy, O: Owner> Protect<'_, F, O> {
    fn commit<M: Mmu<Fault = F>>(&mut self, mmu: &mut M) {
        if self.batch.is_empty() {
            return;
        }
        let done = match mmu.protect(self.batch, self.change) {
            Ok(()) => self.batch.len(),
            Err(halted) => {
                let at = self.batch.get(halted.done).map_or(0, |slot| slot.virt);
                self.stopped = Some(Stopped::before(at, Why::Mmu(halted.fault)));
                halted.done
            }
        };
        self.changed |= done > 0;
        self.batch.clear();
    }
}

impl<M: Mmu, O: Owner> Visit<M> for Protect<'_, M::Fault, O> {
    fn lowest(&mut self, mmu: &mut M, slots: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>> {
        let change = self.change;
        for mut slots in slots.parts(|entry| entry.is_present() && change.of(entry) != entry) {
            loop {
                let added = self.batch.extend(slots);
                if self.batch.is_full() {
                    self.commit(mmu);
                    self.stopped.map_or(Ok(()), Err)?;
                }
                if added == slots.entries.len() {
                    break;
                }
                slots = slots.part(added..slots.entries.len());
            }
        }
        Ok(())
    }

    fn visit(&mut self, mmu: &mut M, slot: Slot, covered: bool) -> Result<Next, Stopped<M::Fault>> {
        match slot.kind() {
            Kind::Empty | Kind::Software | Kind::Malformed => Ok(Next::On),
            Kind::Table(table) => Ok(Next::Into(table)),
            Kind::Page if covered => {
                self.lowest(mmu, slot.alone())?;
                Ok(Next::On)
            }
            Kind::Page => Ok(Next::Into(split(mmu, &slot, self.owner)?)),
        }
    }
}

/// Splits the large page in this slot; the new table.
pub(crate) fn split<M: Mmu>(
    mmu: &mut M,
    slot: &Slot,
    owner: &mut impl Owner,
) -> Result<Pfn, Stopped<M::Fault>> {
    let stopped = |why| Stopped::before(slot.virt, why);
    let table = owner.new_table().ok_or(stopped(Why::NoTableFrame(slot.entry)))?;
    match mmu.split(slot, table) {
        Ok(()) => Ok(table),
        Err(fault) => {
            owner.free_table(table);
            Err(stopped(Why::Mmu(fault)))
        }
    }
}
