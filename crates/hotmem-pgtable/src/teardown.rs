//! Tears down an address space.
//!
//! All tables are first turned into ordinary memory, and then read and freed. So the number of
//! flushes does not depend on the number of tables; if tables were torn down one by one, each would
//! cost a flush.

use crate::error::{StopReason, Stopped, StoppedBy};
use crate::mmu::Mmu;
use crate::owner::Owner;
use crate::page_tables::PageTables;
use crate::range::OffsetRange;
use crate::run_builder::RunBuilder;
use crate::unmap::UnhookedTables;
use crate::walk::walk;
use crate::well_formed::{check_roots, check_well_formed};

impl<M: Mmu> PageTables<'_, M> {
    /// Unmaps the lower half of the address space, and frees its tables and the roots. In a format
    /// with a root for each half, unmaps all that the root translates. No processor may use the
    /// address space any more.
    ///
    /// Flushes only in [`Mmu::retire`], so the number of flushes does not depend on the number of
    /// tables. Cost: the tables are read twice.
    ///
    /// # Errors
    /// [`Stopped`] at a malformed entry; nothing is changed then. [`Stopped`] at 0 if the MMU
    /// refused; the owner receives nothing, and no table is freed then, and the teardown can be
    /// repeated.
    pub fn teardown(mut self, owner: &mut impl Owner<M::Format>) -> Result<(), StoppedBy<M>> {
        let space = self.space;
        let lower_half = OffsetRange { start: 0, end: space.user_bytes() };
        let refused =
            |fault| Stopped { address: 0, reason: StopReason::Mmu(fault), is_flushed: false };
        check_roots(&self.mmu, space, lower_half)?;
        check_well_formed(&mut self.mmu, space, lower_half)?;
        self.mmu.retire(space).map_err(refused)?;
        let mut unhooked = UnhookedTables { owner, run: RunBuilder::default(), may_free: true };
        let walked = walk(&mut self.mmu, &mut unhooked, space, lower_half);
        unhooked.run.finish(unhooked.owner);
        walked?;
        unhooked.owner.free_table(space.root);
        space.user_root.into_iter().for_each(|root| unhooked.owner.free_table(root));
        Ok(())
    }
}
