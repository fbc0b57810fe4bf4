//! Walks the tables below an entry or a root, to find grants, to unpin the tables, or to map them
//! as ordinary memory.

use super::{MachineTables, XenPv};
use crate::abi::MmuExtOp;
use crate::fault::Fault;
use crate::hypervisor::Hypervisor;
use hotmem_pgtable::x86_64::{Entry, LocatedEntry, Space};
use hotmem_pgtable::{ENTRIES, EntryAddr, Kind, Level, each_table, entry_at};

impl<H: Hypervisor, T: MachineTables> XenPv<'_, H, T> {
    /// Returns an error if the entry or a table below it maps a grant; see
    /// [`GrantDetection`](crate::GrantDetection).
    pub(super) fn refuse_grants(&mut self, located: LocatedEntry) -> Result<(), Fault> {
        let grant_flag = self.config.grant_detection.flag();
        if grant_flag.is_empty() {
            return Ok(());
        }
        let refuse = |addr, entry: Entry| {
            let is_grant = entry.is_present() && entry.flags().intersects(grant_flag);
            if is_grant { Err(Fault::GrantMapped { at: addr, entry }) } else { Ok(()) }
        };
        let (Kind::Table(table), Some(level)) = (located.kind(), located.level.below()) else {
            return refuse(located.addr, located.entry);
        };
        each_table(self, table, level, &mut |this: &mut Self, table, level| {
            if level != Level::L1 {
                return Ok(());
            }
            let entries = this.tables.table(table).ok_or(Fault::NotMapped(table))?;
            (0..ENTRIES).try_for_each(|index| {
                refuse(EntryAddr::new(table, index), entry_at(entries, index))
            })
        })
    }

    /// Queues an operation for each L1 table below this entry that unpins the table. Submits the
    /// buffer whenever it is full.
    pub(super) fn unpin_subtree(&mut self, located: LocatedEntry) -> Result<(), Fault> {
        let (Kind::Table(table), Some(level)) = (located.kind(), located.level.below()) else {
            return Ok(());
        };
        each_table(self, table, level, &mut |this: &mut Self, table, level| {
            if level == Level::L1 { this.queue_op(MmuExtOp::unpin(table)) } else { Ok(()) }
        })
    }

    /// Queues an update for each table below this entry that maps the table as ordinary memory.
    /// Submits the buffer whenever it is full.
    pub(super) fn remap_subtree(&mut self, located: LocatedEntry) -> Result<(), Fault> {
        let (Kind::Table(table), Some(level)) = (located.kind(), located.level.below()) else {
            return Ok(());
        };
        each_table(self, table, level, &mut |this: &mut Self, table, _| this.queue_remap(table))
    }

    /// Calls `each` for every entry in the lower half of the root, except empty ones.
    pub(super) fn for_each_lower_half_entry(
        &mut self,
        space: Space,
        each: impl Fn(&mut Self, LocatedEntry) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut indices = 0..ENTRIES / 2;
        loop {
            let root = self.tables.table(space.root).ok_or(Fault::NotMapped(space.root))?;
            let mut entries = indices.by_ref().map(|index| (index, entry_at(root, index)));
            let next_entry = entries.find(|(_, entry)| !entry.is_empty());
            let Some((index, entry)) = next_entry else { return Ok(()) };
            let virt = index as u64 * space.root_level.entry_span().0;
            let addr = EntryAddr::new(space.root, index);
            each(self, LocatedEntry { virt, addr, entry, level: space.root_level })?;
        }
    }
}
