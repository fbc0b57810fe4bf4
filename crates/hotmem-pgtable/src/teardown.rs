//! Tears down an address space.
//!
//! All tables are turned into ordinary memory first, and only then read and freed. So a few flushes
//! are enough; tearing tables down one by one costs one flush each.

use crate::error::{Stopped, Why};
use crate::mmu::Mmu;
use crate::owner::Owner;
use crate::page_tables::PageTables;
use crate::range::{Span, virt};
use crate::runs::Runs;
use crate::sound::{check, check_roots};
use crate::unmap::UnhookedTables;
use crate::walk::walk;

impl<M: Mmu> PageTables<'_, M> {
    /// Tears down the lower half of the address space, and frees its tables and the roots. No
    /// processor may use it any more.
    ///
    /// Flushes as often as [`Mmu::retire`] needs, regardless of the number of tables. Cost: reading
    /// the tables.
    ///
    /// # Errors
    /// [`Stopped`] at a malformed entry, with nothing done; or at 0 if the machine refused, with
    /// nothing reported and no table freed. A refused teardown can be retried once no processor
    /// uses the address space any more.
    pub fn teardown(mut self, owner: &mut impl Owner) -> Result<(), Stopped<M::Fault>> {
        let space = self.space;
        let own = Span { start: 0, end: space.levels.table_bytes().0 / 2 };
        let refused = |fault| Stopped { at: 0, why: Why::Mmu(fault), flushed: false };
        check_roots(&self.mmu, space, own)?;
        check(&mut self.mmu, space, own)?;
        self.mmu.retire(space).map_err(refused)?;
        let mut unhooked = UnhookedTables { owner, runs: Runs::default(), free: true };
        let walked = walk(&mut self.mmu, &mut unhooked, space, own);
        unhooked.runs.finish(unhooked.owner);
        walked?;
        unhooked.owner.free_table(space.root);
        space.user_root.into_iter().for_each(|root| unhooked.owner.free_table(root));
        debug_assert_eq!(virt(own.end - 1, space.levels), own.end - 1);
        Ok(())
    }
}
