//! An address space dies.
//!
//! The order makes the flushes few: all tables become ordinary memory first, and only then is any
//! of them read and freed. Taking tables down one by one costs one flush each.

use crate::error::{Stopped, Why};
use crate::mmu::Mmu;
use crate::owner::Owner;
use crate::page_tables::PageTables;
use crate::range::{Span, virt};
use crate::runs::Runs;
use crate::sound::{check, check_roots};
use crate::unmap::Harvest;
use crate::walk::walk;

impl<M: Mmu> PageTables<'_, M> {
    /// Takes down the address space's own half, the lower one, and frees its tables and the roots.
    /// No processor uses it any more, and none will.
    ///
    /// Flushes: as many as [`Mmu::retire`] needs, whatever the number of tables. Cost: reading
    /// what was mapped.
    ///
    /// # Errors
    /// [`Stopped`] at what cannot be read, with nothing done; or at 0 if the machine refused, with
    /// nothing told and no table freed. It can be tried again, when the processor that still used
    /// the address space does not any more.
    pub fn teardown(mut self, owner: &mut impl Owner) -> Result<(), Stopped<M::Fault>> {
        let space = self.space;
        let own = Span { start: 0, end: space.levels.table_bytes().0 / 2 };
        let refused = |fault| Stopped { at: 0, why: Why::Mmu(fault), flushed: false };
        check_roots(&self.mmu, space, own)?;
        check(&mut self.mmu, space, own)?;
        self.mmu.retire(space).map_err(refused)?;
        let mut harvest = Harvest { owner, runs: Runs::default(), free: true };
        let walked = walk(&mut self.mmu, &mut harvest, space, own);
        harvest.runs.finish(harvest.owner);
        walked?;
        harvest.owner.free_table(space.root);
        space.user_root.into_iter().for_each(|root| harvest.owner.free_table(root));
        debug_assert_eq!(virt(own.end - 1, space.levels), own.end - 1);
        Ok(())
    }
}
