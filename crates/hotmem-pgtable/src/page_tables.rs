//! An address space on its machine, with room for batches.

use crate::batch::Batch;
use crate::error::{Stopped, Why};
use crate::mmu::Mmu;
use crate::range::{Span, VirtRange};
use crate::space::Space;

/// An address space on its machine.
pub struct PageTables<'b, M> {
    pub(crate) mmu: M,
    pub(crate) space: Space,
    pub(crate) batch: &'b mut Batch,
}

impl<'b, M: Mmu> PageTables<'b, M> {
    /// An address space, with room for the batches of its changes.
    pub fn new(mmu: M, space: Space, batch: &'b mut Batch) -> Self {
        batch.begin(space);
        PageTables { mmu, space, batch }
    }

    /// The machine.
    pub fn mmu(&mut self) -> &mut M {
        &mut self.mmu
    }

    /// The machine, for good.
    pub fn into_mmu(self) -> M {
        self.mmu
    }

    pub(crate) fn span(&self, range: VirtRange) -> Result<Span, Stopped<M::Fault>> {
        let refused = Stopped::before(range.start(), Why::NotCanonical(range));
        Span::of(range, self.space.levels).ok_or(refused)
    }
}
