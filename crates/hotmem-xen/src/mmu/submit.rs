//! Gathers updates and operations in the buffer, and submits them in hypercalls.

use super::{MachineTables, XenPv, refused};
use crate::abi::{Command, DomId, Errno, MmuExtOp, MmuUpdate};
use crate::config::BATCH;
use crate::fault::{Call, Fault};
use crate::hypervisor::{Hypervisor, Partly};
use hotmem_addr::Pfn;
use hotmem_invariant::Known;
use hotmem_pgtable::{Entry, Flags, Halted, Slot, Slots};

impl<H: Hypervisor, T: MachineTables> XenPv<'_, H, T> {
    /// Gathers updates of these slots, as many as there is room for. Returns how many.
    pub(super) fn gather(
        &mut self,
        slots: Slots<&[Entry]>,
        update: impl Fn(&Slot) -> MmuUpdate,
    ) -> usize {
        let room = self.buffer.updates.get_mut(self.updates..self.config.batch);
        let room = room.known().unwrap_or_default();
        let mut gathered = 0;
        for (room, slot) in room.iter_mut().zip(slots.each()) {
            *room = update(&slot);
            gathered += 1;
        }
        self.updates += gathered;
        gathered
    }

    /// Submits the gathered work in one hypercall, the unpinning first. Returns the result of the
    /// unpinning, and how many updates were done.
    fn submit(&mut self) -> (Result<(), Fault>, Result<usize, Partly>) {
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
        (go_on_unpinning(&mut self.xen, ops, unpinned), updated.map(|()| updates.len()))
    }

    /// Submits the gathered work, and adds the updates that were done to `done`.
    pub(super) fn send(
        &mut self,
        done: &mut usize,
        unpinned: Result<(), Fault>,
    ) -> Result<(), Halted<Fault>> {
        // Tables below entries that do not change stay pinned.
        if self.updates == 0 {
            self.ops = 0;
        }
        let asked = self.updates;
        let (ops, updated) = self.submit();
        // At most as many as were requested, whatever Xen answers.
        *done += updated.unwrap_or_else(|partly| partly.done.min(asked));
        let faults = updated.map(|_| ()).map_err(refused(Call::MmuUpdate)).and(unpinned).and(ops);
        faults.map_err(|fault| Halted { done: *done, fault })
    }

    pub(super) fn gather_op(&mut self, op: MmuExtOp) -> Result<(), Fault> {
        if self.ops == BATCH {
            let ops = self.buffer.ops.get(..core::mem::take(&mut self.ops));
            let ops = ops.known().unwrap_or_default();
            let unpinned = self.xen.mmuext_op(ops);
            go_on_unpinning(&mut self.xen, ops, unpinned)?;
        }
        if let Some(room) = self.buffer.ops.get_mut(self.ops).known() {
            *room = op;
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
        if let Some(room) = self.buffer.updates.get_mut(self.updates).known() {
            *room = MmuUpdate::new(at, Command::Normal, entry.with(Flags::WRITABLE));
            self.updates += 1;
        }
        Ok(())
    }

    /// Submits the gathered work. If unpinning continued after a table that was not pinned, the
    /// remaining tables are mapped only now.
    pub(super) fn send_remaps(&mut self) -> Result<(), Fault> {
        let count = self.updates;
        let (unpinned, remapped) = self.submit();
        unpinned?;
        let again = |partly: Partly| {
            // Nothing is left if Xen reports more than was requested.
            let left = self.buffer.updates.get(partly.done..count).unwrap_or_default();
            if partly.errno == Errno::EBUSY && !left.is_empty() {
                self.xen.mmu_update(left, DomId::SELF)
            } else {
                Err(partly)
            }
        };
        remapped.map(|_| ()).or_else(again).map_err(refused(Call::Remap))
    }
}

/// Continues after tables that are not pinned, so that a teardown that failed in the middle can be
/// repeated. If a table is still in use, mapping it writable fails.
fn go_on_unpinning(
    xen: &mut impl Hypervisor,
    mut ops: &[MmuExtOp],
    mut result: Result<(), Partly>,
) -> Result<(), Fault> {
    while let Err(Partly { done, errno: Errno::EINVAL }) = result {
        ops = ops.get(done.saturating_add(1)..).unwrap_or_default();
        result = if ops.is_empty() { Ok(()) } else { xen.mmuext_op(ops) };
    }
    result.map_err(refused(Call::Unpin))
}
