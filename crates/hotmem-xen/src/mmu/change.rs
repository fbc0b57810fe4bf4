//! Changes the entries of a batch, and stops before the first entry that maps a grant.

use super::{MachineTables, XenPv};
use crate::abi::{Command, DomId, MmuUpdate};
use crate::fault::Fault;
use crate::hypervisor::Hypervisor;
use hotmem_pgtable::x86_64::{Batch, Entry, LocatedEntry};
use hotmem_pgtable::{BatchError, EntryAddr, Level, LocatedEntries};

impl<H: Hypervisor, T: MachineTables> XenPv<'_, H, T> {
    /// Makes Xen change the batch's entries as `update` says, `Config::batch` entries in a hypercall.
    pub(super) fn change(
        &mut self,
        batch: &Batch,
        update: impl Fn(&LocatedEntry) -> MmuUpdate,
    ) -> Result<(), BatchError<Fault>> {
        (self.op_count, self.update_count) = (0, 0);
        let (mut entries_done, mut unpin_result) = (0, Ok(()));
        for located in batch.entry_runs() {
            let (changeable, grant) = self.count_before_grant(located);
            let mut remaining = located.part(0..changeable);
            // Change entries of the root one by one, each together with its copy in the user's
            // root.
            if batch.user_copy(located.first_addr).is_some() {
                self.submit(&mut entries_done, core::mem::replace(&mut unpin_result, Ok(())))?;
                self.change_both(
                    remaining,
                    |addr| batch.user_copy(addr),
                    &update,
                    &mut entries_done,
                )?;
                remaining = remaining.part(changeable..changeable);
            }
            while !remaining.entries.is_empty() {
                let queued = remaining.part(0..self.queue_updates(remaining, &update));
                if self.config.pins_l1 && located.level != Level::L1 {
                    // Xen releases the tables below only if they are not pinned when the entry is
                    // cleared.
                    unpin_result = queued.each().fold(unpin_result, |result, located| {
                        result.and(self.unpin_subtree(located))
                    });
                }
                remaining = remaining.part(queued.entries.len()..remaining.entries.len());
                if self.update_count == self.config.batch {
                    self.submit(&mut entries_done, unpin_result)?;
                }
            }
            if let Some(fault) = grant {
                self.submit(&mut entries_done, unpin_result)?;
                return Err(BatchError { entries_done, fault });
            }
        }
        self.submit(&mut entries_done, unpin_result)
    }

    /// Makes Xen change entries of the root together with their copies in the user's root. If Xen
    /// changes the copy and refuses the entry, restores the copy.
    fn change_both(
        &mut self,
        located: LocatedEntries<&[Entry]>,
        copy_of: impl Fn(EntryAddr) -> Option<EntryAddr>,
        update: impl Fn(&LocatedEntry) -> MmuUpdate,
        entries_done: &mut usize,
    ) -> Result<(), BatchError<Fault>> {
        for located in located.each() {
            let unpin_result =
                if self.config.pins_l1 { self.unpin_subtree(located) } else { Ok(()) };
            let copy = copy_of(located.addr);
            self.update_count = 0;
            for addr in copy.into_iter().chain([located.addr]) {
                self.buffer.updates[self.update_count] = update(&LocatedEntry { addr, ..located });
                self.update_count += 1;
            }
            let (requested, mut updates_done) = (self.update_count, 0);
            let submitted = self.submit(&mut updates_done, unpin_result);
            *entries_done += usize::from(updates_done == requested);
            if let Some(copy) = copy.filter(|_| updates_done == 1) {
                let restore = MmuUpdate::new(copy, Command::Normal, located.entry);
                let lost_copy = |_| BatchError {
                    entries_done: *entries_done,
                    fault: Fault::LostFromUserRoot(copy),
                };
                self.xen.mmu_update(&[restore], DomId::SELF).map_err(lost_copy)?;
            }
            submitted.map_err(|refused| BatchError { entries_done: *entries_done, ..refused })?;
        }
        Ok(())
    }

    /// Returns the number of entries before the first one for which
    /// [`refuse_grants`](Self::refuse_grants) fails, and its error.
    fn count_before_grant(&mut self, located: LocatedEntries<&[Entry]>) -> (usize, Option<Fault>) {
        let mut fault = None;
        let is_refused = |located| {
            fault = self.refuse_grants(located).err();
            fault.is_some()
        };
        let first = located.each().position(is_refused);
        (first.unwrap_or(located.entries.len()), fault)
    }
}
