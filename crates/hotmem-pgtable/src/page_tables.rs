//! Defines the type that has the operations on the page tables of an address space.

use crate::batch::Batch;
use crate::error::{Stopped, Why};
use crate::mmu::Mmu;
use crate::range::{Span, VirtRange};
use crate::space::Space;

/// The page tables of one address space, with the machine that changes them.
pub struct PageTables<'b, M> {
    pub(crate) mmu: M,
    pub(crate) space: Space,
    pub(crate) batch: &'b mut Batch,
}

impl<'b, M: Mmu> PageTables<'b, M> {
    /// Creates the page tables of `space`, which `mmu` changes. `batch` is scratch memory; its
    /// contents are discarded.
    pub fn new(mmu: M, space: Space, batch: &'b mut Batch) -> Self {
        batch.begin(space);
        PageTables { mmu, space, batch }
    }

    /// Returns the machine.
    pub fn mmu(&mut self) -> &mut M {
        &mut self.mmu
    }

    /// Returns the machine. The page tables stay as they are.
    pub fn into_mmu(self) -> M {
        self.mmu
    }

    pub(crate) fn span(&self, range: VirtRange) -> Result<Span, Stopped<M::Fault>> {
        let refused = Stopped::new(range.start(), Why::NotCanonical(range));
        Span::of(range, self.space.levels).ok_or(refused)
    }
}
