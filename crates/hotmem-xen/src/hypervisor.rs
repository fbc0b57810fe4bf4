//! Declares the hypercalls that change page tables.

use crate::abi::{DomId, Errno, MmuExtOp, MmuUpdate};

/// A hypervisor with the interface of Xen's public headers.
pub trait Hypervisor {
    /// `HYPERVISOR_mmu_update`: changes entries one after another. New entries point to frames of
    /// the domain `owner`.
    ///
    /// # Errors
    /// [`BatchRefused`] at the first update that Xen refuses.
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), BatchRefused>;

    /// `HYPERVISOR_mmuext_op`: pins or unpins tables, or flushes TLBs.
    ///
    /// # Errors
    /// [`BatchRefused`] at the first operation that Xen refuses.
    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), BatchRefused>;

    /// Makes both calls in one `HYPERVISOR_multicall`. The second is made even if the first stops.
    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>);
}

/// The error of a batch of which Xen refused an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchRefused {
    /// The number of entries, from the first, that are done.
    pub done: usize,
    /// The error of the next entry.
    pub errno: Errno,
}

impl<H: Hypervisor> Hypervisor for &mut H {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), BatchRefused> {
        (**self).mmu_update(updates, owner)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), BatchRefused> {
        (**self).mmuext_op(ops)
    }

    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>) {
        (**self).mmuext_op_then_update(ops, updates)
    }
}
