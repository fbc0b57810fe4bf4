//! The hypercalls that change page tables.

use crate::abi::{DomId, Errno, MmuExtOp, MmuUpdate};

/// A hypervisor that keeps its word on the interface of Xen's public headers.
pub trait Hypervisor {
    /// `HYPERVISOR_mmu_update`: changes entries one after another. `owner` is whose frames new
    /// entries point to.
    ///
    /// # Errors
    /// [`Partly`]: it stops at the first that it refuses.
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), Partly>;

    /// `HYPERVISOR_mmuext_op`: pins, unpins, flushes.
    ///
    /// # Errors
    /// [`Partly`]
    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), Partly>;

    /// Both by one `HYPERVISOR_multicall`, the second even where the first stops.
    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), Partly>, Result<(), Partly>);
}

/// A batch that stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partly {
    /// How many, from the first, are done.
    pub done: usize,
    /// Why the next is not.
    pub errno: Errno,
}

impl<H: Hypervisor> Hypervisor for &mut H {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), Partly> {
        (**self).mmu_update(updates, owner)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), Partly> {
        (**self).mmuext_op(ops)
    }

    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), Partly>, Result<(), Partly>) {
        (**self).mmuext_op_then_update(ops, updates)
    }
}
