//! Gathers updates and operations in the buffer, and submits them in hypercalls.

use super::{MachineTables, XenPv, refused};
use crate::abi::{Command, DomId, Errno, MmuExtOp, MmuUpdate};
use crate::config::BATCH;
use crate::fault::{Call, Fault};
use crate::hypervisor::{BatchRefused, Hypervisor};
use hotmem_addr::Pfn;
use hotmem_invariant::Known;
use hotmem_pgtable::{BatchError, Entry, Flags, Slot, Slots};

impl<H: Hypervisor, T: MachineTables> XenPv<'_, H, T> {
    /// Gathers updates of as many of these slots as fit in the buffer. Returns the number of slots.
    pub(super) fn gather(
        &mut self,
        slots: Slots<&[Entry]>,
        update: impl Fn(&Slot) -> MmuUpdate,
    ) -> usize {
        let unused = self.buffer.updates.get_mut(self.updates..self.config.batch);
        let unused = unused.known().unwrap_or_default();
        let mut gathered = 0;
        for (entry, slot) in unused.iter_mut().zip(slots.each()) {
            *entry = update(&slot);
            gathered += 1;
        }
        self.updates += gathered;
        gathered
    }

    /// Submits the gathered operations and updates in one hypercall, the operations first. Returns
    /// the result of the operations, and the number of updates that Xen made.
    fn submit(&mut self) -> (Result<(), Fault>, Result<usize, BatchRefused>) {
        let updates = self.buffer.updates.get(..core::mem::take(&mut self.updates));
        let updates = updates.known().unwrap_or_default();
        let ops = self.buffer.ops.get(..core::mem::take(&mut self.ops));
        let ops = ops.known().unwrap_or_default();
        let (unpinned, updated) = match (ops.is_empty(), updates.is_empty()) {
            (true, true) => (Ok(()), Ok(())),
            (true, false) => (Ok(()), self.xen.mmu_update(updates, DomId::SELF)),
            (false, true) => (self.xen.mmuext_op(ops), Ok(())),
            (false, false) => self.xen.mmuext_op_then_update(ops, updates),
        };
        (continue_unpinning(&mut self.xen, ops, unpinned), updated.map(|()| updates.len()))
    }

    /// Submits the gathered operations and updates, and adds the number of updates that Xen made to
    /// `done`.
    pub(super) fn send(
        &mut self,
        done: &mut usize,
        unpinned: Result<(), Fault>,
    ) -> Result<(), BatchError<Fault>> {
        // Without updates no entry is unhooked, so drop the operations: the tables stay pinned.
        if self.updates == 0 {
            self.ops = 0;
        }
        let requested = self.updates;
        let (ops, updated) = self.submit();
        // Do not trust a number above that of the requested updates.
        *done += updated.unwrap_or_else(|partly| partly.done.min(requested));
        let faults = updated.map(|_| ()).map_err(refused(Call::MmuUpdate)).and(unpinned).and(ops);
        faults.map_err(|fault| BatchError { done: *done, fault })
    }

    /// Gathers an operation, and first submits the gathered operations if the buffer is full.
    pub(super) fn gather_op(&mut self, op: MmuExtOp) -> Result<(), Fault> {
        if self.ops == BATCH {
            let ops = self.buffer.ops.get(..core::mem::take(&mut self.ops));
            let ops = ops.known().unwrap_or_default();
            let unpinned = self.xen.mmuext_op(ops);
            continue_unpinning(&mut self.xen, ops, unpinned)?;
        }
        if let Some(next) = self.buffer.ops.get_mut(self.ops).known() {
            *next = op;
            self.ops += 1;
        }
        Ok(())
    }

    /// Gathers the mapping of a table as ordinary memory, and submits the buffer whenever it is
    /// full.
    pub(super) fn gather_remap(&mut self, table: Pfn) -> Result<(), Fault> {
        let (at, entry) = self.tables.window(table).ok_or(Fault::NotMapped(table))?;
        if self.updates == BATCH {
            self.send_remaps()?;
        }
        if let Some(next) = self.buffer.updates.get_mut(self.updates).known() {
            *next = MmuUpdate::new(at, Command::Normal, entry.with(Flags::WRITABLE));
            self.updates += 1;
        }
        Ok(())
    }

    /// Submits the gathered operations and updates. If Xen refused an update because a table was
    /// still pinned, submits the remaining updates again: the unpinning has continued in between.
    pub(super) fn send_remaps(&mut self) -> Result<(), Fault> {
        let count = self.updates;
        let (unpinned, remapped) = self.submit();
        unpinned?;
        let again = |partly: BatchRefused| {
            // If Xen reports more updates than were requested, none remain.
            let remaining = self.buffer.updates.get(partly.done..count).unwrap_or_default();
            if partly.errno == Errno::EBUSY && !remaining.is_empty() {
                self.xen.mmu_update(remaining, DomId::SELF)
            } else {
                Err(partly)
            }
        };
        remapped.map(|_| ()).or_else(again).map_err(refused(Call::Remap))
    }
}

/// Continues the unpinning after each table that is not pinned, so that a teardown that failed in
/// the middle can be repeated. Tables that are still in use are found later: Xen refuses to map
/// them writable.
fn continue_unpinning(
    xen: &mut impl Hypervisor,
    mut ops: &[MmuExtOp],
    mut result: Result<(), BatchRefused>,
) -> Result<(), Fault> {
    while let Err(BatchRefused { done, errno: Errno::EINVAL }) = result {
        ops = ops.get(done.saturating_add(1)..).unwrap_or_default();
        result = if ops.is_empty() { Ok(()) } else { xen.mmuext_op(ops) };
    }
    result.map_err(refused(Call::Unpin))
}
