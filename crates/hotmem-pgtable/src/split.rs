//! Splits large pages.

use crate::batch::Slot;
use crate::error::{Stopped, Why};
use crate::mmu::Mmu;
use crate::owner::Owner;
use hotmem_addr::Pfn;

/// Splits the large page of this slot, with a table from the owner. Returns the table.
pub(crate) fn split<M: Mmu>(
    mmu: &mut M,
    slot: &Slot,
    owner: &mut impl Owner,
) -> Result<Pfn, Stopped<M::Fault>> {
    let stopped = |why| Stopped::new(slot.virt, why);
    let table = owner.new_table().ok_or(stopped(Why::NoTableFrame(slot.entry)))?;
    match mmu.split(slot, table) {
        Ok(()) => Ok(table),
        Err(fault) => {
            owner.free_table(table);
            Err(stopped(Why::Mmu(fault)))
        }
    }
}
