//! Queues updates and operations in the buffer, and submits them in hypercalls.

use super::{MachineTables, XenPv, refused};
use crate::abi::{Command, DomId, Errno, MmuExtOp, MmuUpdate};
use crate::config::MAX_BATCH;
use crate::fault::{Fault, HypercallPurpose};
use crate::hypervisor::{BatchRefused, Hypervisor};
use hotmem_addr::Pfn;
use hotmem_invariant::OrRecordViolation;
use hotmem_pgtable::x86_64::{Entry, Flags, LocatedEntry};
use hotmem_pgtable::{BatchError, LocatedEntries};

impl<H: Hypervisor, T: MachineTables> XenPv<'_, H, T> {
    /// Queues updates of as many of these entries as fit in the buffer. Returns the number of
    /// entries.
    pub(super) fn queue_updates(
        &mut self,
        located: LocatedEntries<&[Entry]>,
        update: impl Fn(&LocatedEntry) -> MmuUpdate,
    ) -> usize {
        let free = self.buffer.updates.get_mut(self.update_count..self.config.batch);
        let free = free.or_record_violation().unwrap_or_default();
        let mut queued = 0;
        for (slot, located) in free.iter_mut().zip(located.each()) {
            *slot = update(&located);
            queued += 1;
        }
        self.update_count += queued;
        queued
    }

    /// Makes one hypercall with the queued operations and updates, the operations first. Returns
    /// the result of the operations, and the number of updates that Xen made.
    fn make_hypercall(&mut self) -> (Result<(), Fault>, Result<usize, BatchRefused>) {
        let updates = self.buffer.updates.get(..core::mem::take(&mut self.update_count));
        let updates = updates.or_record_violation().unwrap_or_default();
        let ops = self.buffer.ops.get(..core::mem::take(&mut self.op_count));
        let ops = ops.or_record_violation().unwrap_or_default();
        let (unpinned, updated) = match (ops.is_empty(), updates.is_empty()) {
            (true, true) => (Ok(()), Ok(())),
            (true, false) => (Ok(()), self.xen.mmu_update(updates, DomId::SELF)),
            (false, true) => (self.xen.mmuext_op(ops), Ok(())),
            (false, false) => self.xen.mmuext_op_then_update(ops, updates),
        };
        (continue_unpinning(&mut self.xen, ops, unpinned), updated.map(|()| updates.len()))
    }

    /// Submits the queued operations and updates, and adds the number of updates that Xen made to
    /// `entries_done`.
    pub(super) fn submit(
        &mut self,
        entries_done: &mut usize,
        unpinned: Result<(), Fault>,
    ) -> Result<(), BatchError<Fault>> {
        // Without updates no table is unhooked, so all tables must stay pinned: discard the operations.
        if self.update_count == 0 {
            self.op_count = 0;
        }
        let requested = self.update_count;
        let (ops, updated) = self.make_hypercall();
        // Count at most the requested updates, whatever number Xen reports.
        *entries_done += updated.unwrap_or_else(|refused| refused.entries_done.min(requested));
        let faults = updated
            .map(|_| ())
            .map_err(refused(HypercallPurpose::MmuUpdate))
            .and(unpinned)
            .and(ops);
        faults.map_err(|fault| BatchError { entries_done: *entries_done, fault })
    }

    /// Queues an operation, and first submits the queued operations if the buffer is full.
    pub(super) fn queue_op(&mut self, op: MmuExtOp) -> Result<(), Fault> {
        if self.op_count == MAX_BATCH {
            let ops = self.buffer.ops.get(..core::mem::take(&mut self.op_count));
            let ops = ops.or_record_violation().unwrap_or_default();
            let unpinned = self.xen.mmuext_op(ops);
            continue_unpinning(&mut self.xen, ops, unpinned)?;
        }
        if let Some(next) = self.buffer.ops.get_mut(self.op_count).or_record_violation() {
            *next = op;
            self.op_count += 1;
        }
        Ok(())
    }

    /// Queues the update that maps a table as ordinary memory. First submits the buffer if it is
    /// full.
    pub(super) fn queue_remap(&mut self, table: Pfn) -> Result<(), Fault> {
        let (addr, entry) = self.tables.direct_map_entry(table).ok_or(Fault::NotMapped(table))?;
        if self.update_count == MAX_BATCH {
            self.submit_remaps()?;
        }
        if let Some(next) = self.buffer.updates.get_mut(self.update_count).or_record_violation() {
            *next = MmuUpdate::new(addr, Command::Normal, entry.with(Flags::WRITABLE));
            self.update_count += 1;
        }
        Ok(())
    }

    /// Submits the queued operations and updates. If Xen refuses an update because the table is
    /// still pinned, submits this update and the ones after it again: by then `make_hypercall` has
    /// completed the operations, and the table is not pinned any more.
    pub(super) fn submit_remaps(&mut self) -> Result<(), Fault> {
        let count = self.update_count;
        let (unpinned, remapped) = self.make_hypercall();
        unpinned?;
        let retry = |refused: BatchRefused| {
            // If Xen reports more updates than were requested, none remain.
            let remaining =
                self.buffer.updates.get(refused.entries_done..count).unwrap_or_default();
            if refused.errno == Errno::EBUSY && !remaining.is_empty() {
                self.xen.mmu_update(remaining, DomId::SELF)
            } else {
                Err(refused)
            }
        };
        remapped.map(|_| ()).or_else(retry).map_err(refused(HypercallPurpose::Remap))
    }
}

/// If Xen refused to unpin a table because it is not pinned, continues with the next table. So a
/// teardown that failed in the middle can be repeated. If a table is still in use, Xen later refuses
/// to map it writable.
fn continue_unpinning(
    xen: &mut impl Hypervisor,
    mut ops: &[MmuExtOp],
    mut result: Result<(), BatchRefused>,
) -> Result<(), Fault> {
    while let Err(BatchRefused { entries_done, errno: Errno::EINVAL }) = result {
        ops = ops.get(entries_done.saturating_add(1)..).unwrap_or_default();
        result = if ops.is_empty() { Ok(()) } else { xen.mmuext_op(ops) };
    }
    result.map_err(refused(HypercallPurpose::Unpin))
}
