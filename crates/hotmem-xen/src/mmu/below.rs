//! Walks the tables below a slot or a root, to find grants, to unpin the tables, or to map them as
//! ordinary memory.

use super::{MachineTables, XenPv};
use crate::abi::MmuExtOp;
use crate::fault::Fault;
use crate::hypervisor::Hypervisor;
use hotmem_pgtable::{ENTRIES, Entry, EntryAddr, Kind, Level, Slot, Space, each_table, entry_at};

impl<H: Hypervisor, T: MachineTables> XenPv<'_, H, T> {
    /// Returns an error if a slot maps a grant or has one below it. If the grant was unmapped like
    /// a page, Xen would not count it as returned, and the granting domain would never get its
    /// frame back.
    pub(super) fn refuse_grants(&mut self, slot: Slot) -> Result<(), Fault> {
        let grant = self.config.grants.flag();
        if grant.is_empty() {
            return Ok(());
        }
        let refuse = |at, entry: Entry| {
            let is_grant = entry.is_present() && entry.flags().intersects(grant);
            if is_grant { Err(Fault::GrantMapped { at, entry }) } else { Ok(()) }
        };
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return refuse(slot.at, slot.entry);
        };
        each_table(self, table, level, &mut |this: &mut Self, table, level| {
            if level != Level::L1 {
                return Ok(());
            }
            let words = this.tables.table(table).ok_or(Fault::NotMapped(table))?;
            (0..ENTRIES)
                .try_for_each(|index| refuse(EntryAddr::new(table, index), entry_at(words, index)))
        })
    }

    /// Gathers the unpinning of all L1 tables below this slot, and submits the buffer whenever it
    /// is full.
    pub(super) fn unpin_below(&mut self, slot: Slot) -> Result<(), Fault> {
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return Ok(());
        };
        each_table(self, table, level, &mut |this: &mut Self, table, level| {
            if level == Level::L1 { this.gather_op(MmuExtOp::unpin(table)) } else { Ok(()) }
        })
    }

    /// Gathers the mapping of all tables below this slot as ordinary memory, and submits the buffer
    /// whenever it is full.
    pub(super) fn remap_below(&mut self, slot: Slot) -> Result<(), Fault> {
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return Ok(());
        };
        each_table(self, table, level, &mut |this: &mut Self, table, _| this.gather_remap(table))
    }

    /// Calls `each` for every entry in the lower half of a root that is not empty.
    pub(super) fn each_lower(
        &mut self,
        space: Space,
        each: impl Fn(&mut Self, Slot) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut rest = 0..ENTRIES / 2;
        loop {
            let root = self.tables.table(space.root).ok_or(Fault::NotMapped(space.root))?;
            let mut entries = rest.by_ref().map(|index| (index, entry_at(root, index)));
            let found = entries.find(|(_, entry)| !entry.is_empty());
            let Some((index, entry)) = found else { return Ok(()) };
            let virt = index as u64 * space.levels.entry_bytes().0;
            let at = EntryAddr::new(space.root, index);
            each(self, Slot { virt, at, entry, level: space.levels })?;
        }
    }
}
