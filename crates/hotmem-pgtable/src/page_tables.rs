//! The page tables of an address space, and the operations on them.

use crate::batch::Batch;
use crate::error::{Stopped, Why};
use crate::mmu::Mmu;
use crate::range::{Span, VirtRange};
use crate::space::Space;

/// The page tables of one address space, on the machine that changes them.
pub struct PageTables<'b, M> {
    pub(crate) mmu: M,
    pub(crate) space: Space,
    pub(crate) batch: &'b mut Batch,
}

impl<'b, M: Mmu> PageTables<'b, M> {
    /// Makes the page tables of `space`. `batch` is scratch memory for changes.
    pub fn new(mmu: M, space: Space, batch: &'b mut Batch) -> Self {
        batch.begin(space);
        PageTables { mmu, space, batch }
    }

    /// Returns the machine.
    pub fn mmu(&mut self) -> &mut M {
        &mut self.mmu
    }

    /// Returns the machine, and drops the address space.
    pub fn into_mmu(self) -> M {
        self.mmu
    }

    pub(crate) fn span(&self, range: VirtRange) -> Result<Span, Stopped<M::Fault>> {
        let refused = Stopped::before(range.start(), Why::NotCanonical(range));
        Span::of(range, self.space.levels).ok_or(refused)
    }
}
