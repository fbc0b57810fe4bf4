//! Splits large pages.

use crate::error::{StopReason, Stopped, StoppedBy};
use crate::located::LocatedEntry;
use crate::mmu::Mmu;
use crate::owner::Owner;
use hotmem_addr::Pfn;

/// Splits the large page that this entry maps, with a table from the owner. Returns the table.
pub(crate) fn split<M: Mmu>(
    mmu: &mut M,
    located: &LocatedEntry<M::Format>,
    owner: &mut impl Owner<M::Format>,
) -> Result<Pfn, StoppedBy<M>> {
    let stopped = |reason| Stopped::new(located.virt, reason);
    let table = owner.new_table().ok_or(stopped(StopReason::NoTableFrame(located.entry)))?;
    match mmu.split(located, table) {
        Ok(()) => Ok(table),
        Err(fault) => {
            owner.free_table(table);
            Err(stopped(StopReason::Mmu(fault)))
        }
    }
}
