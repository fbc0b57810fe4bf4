//! Defines the type that has the operations on the page tables of an address space.

use crate::batch::Batch;
use crate::error::{StopReason, Stopped, StoppedBy};
use crate::format::Format;
use crate::mmu::Mmu;
use crate::range::{OffsetRange, VirtRange};
use crate::space::Space;

/// The page tables of one address space, with the MMU that changes them.
pub struct PageTables<'b, M: Mmu> {
    pub(crate) mmu: M,
    pub(crate) space: Space<M::Format>,
    pub(crate) batch: &'b mut Batch<M::Format>,
}

impl<'b, M: Mmu> PageTables<'b, M> {
    /// Creates the page tables of `space`, which `mmu` changes. `batch` is scratch memory; its
    /// contents are discarded.
    pub fn new(mmu: M, space: Space<M::Format>, batch: &'b mut Batch<M::Format>) -> Self {
        batch.begin(space);
        PageTables { mmu, space, batch }
    }

    /// Returns the MMU.
    pub fn mmu(&mut self) -> &mut M {
        &mut self.mmu
    }

    /// Returns the MMU. The page tables stay as they are.
    pub fn into_mmu(self) -> M {
        self.mmu
    }

    pub(crate) fn span(&self, range: VirtRange) -> Result<OffsetRange, StoppedBy<M>> {
        span_of(self.space, range)
    }
}

/// Returns the offsets of a range in an address space. Fails if the range is not canonical.
pub(crate) fn span_of<Fault, F: Format>(
    space: Space<F>,
    range: VirtRange,
) -> Result<OffsetRange, Stopped<Fault, F>> {
    let refused = Stopped::new(range.start(), StopReason::NotCanonical(range));
    OffsetRange::of(range, space).ok_or(refused)
}
