//! Changes the entries of a batch, and stops before the first entry that maps a grant.

use super::{MachineTables, XenPv};
use crate::abi::{Command, DomId, MmuUpdate};
use crate::fault::Fault;
use crate::hypervisor::Hypervisor;
use hotmem_pgtable::{Batch, BatchError, Entry, EntryAddr, Level, Slot, Slots};

impl<H: Hypervisor, T: MachineTables> XenPv<'_, H, T> {
    /// Makes Xen apply `update` to each of the batch's entries, `Config::batch` entries in a
    /// hypercall.
    pub(super) fn change(
        &mut self,
        batch: &Batch,
        update: impl Fn(&Slot) -> MmuUpdate,
    ) -> Result<(), BatchError<Fault>> {
        (self.ops, self.updates) = (0, 0);
        let (mut done, mut unpinned) = (0, Ok(()));
        for slots in batch.slots() {
            let (changeable, grant) = self.count_before_grant(slots);
            let mut left = slots.part(0..changeable);
            // Change entries of the root one by one, each together with its copy in the user's
            // root.
            if batch.user_copy(slots.at).is_some() {
                self.send(&mut done, core::mem::replace(&mut unpinned, Ok(())))?;
                self.change_both(left, |at| batch.user_copy(at), &update, &mut done)?;
                left = left.part(changeable..changeable);
            }
            while !left.entries.is_empty() {
                let gathered = left.part(0..self.gather(left, &update));
                if self.config.pins_l1 && slots.level != Level::L1 {
                    // The tables below must be unpinned, or Xen does not release them when the
                    // entry is unhooked.
                    unpinned = gathered
                        .each()
                        .fold(unpinned, |so_far, slot| so_far.and(self.unpin_below(slot)));
                }
                left = left.part(gathered.entries.len()..left.entries.len());
                if self.updates == self.config.batch {
                    self.send(&mut done, unpinned)?;
                }
            }
            if let Some(fault) = grant {
                self.send(&mut done, unpinned)?;
                return Err(BatchError { done, fault });
            }
        }
        self.send(&mut done, unpinned)
    }

    /// Makes Xen change entries of the root together with their copies in the user's root. If Xen
    /// changes the copy and refuses the entry, restores the copy.
    fn change_both(
        &mut self,
        slots: Slots<&[Entry]>,
        copy_of: impl Fn(EntryAddr) -> Option<EntryAddr>,
        update: impl Fn(&Slot) -> MmuUpdate,
        done: &mut usize,
    ) -> Result<(), BatchError<Fault>> {
        for slot in slots.each() {
            let unpinned = if self.config.pins_l1 { self.unpin_below(slot) } else { Ok(()) };
            let copy = copy_of(slot.at);
            self.updates = 0;
            for at in copy.into_iter().chain([slot.at]) {
                self.buffer.updates[self.updates] = update(&Slot { at, ..slot });
                self.updates += 1;
            }
            let (all, mut parts) = (self.updates, 0);
            let sent = self.send(&mut parts, unpinned);
            *done += usize::from(parts == all);
            if let Some(copy) = copy.filter(|_| parts == 1) {
                let restore = MmuUpdate::new(copy, Command::Normal, slot.entry);
                let lost = |_| BatchError { done: *done, fault: Fault::LostFromUserRoot(copy) };
                self.xen.mmu_update(&[restore], DomId::SELF).map_err(lost)?;
            }
            sent.map_err(|halted| BatchError { done: *done, ..halted })?;
        }
        Ok(())
    }

    /// Returns the number of slots before the first that maps a grant or has one below it, and the
    /// error for that slot.
    fn count_before_grant(&mut self, slots: Slots<&[Entry]>) -> (usize, Option<Fault>) {
        let mut refused = None;
        let refuses = |slot| {
            refused = self.refuse_grants(slot).err();
            refused.is_some()
        };
        let first = slots.each().position(refuses);
        (first.unwrap_or(slots.entries.len()), refused)
    }
}
