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

    /// Calls `mmuext_op` and then `mmu_update` in one `HYPERVISOR_multicall`. Xen makes the second
    /// call even if it refuses an operation of the first.
    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>);
}

/// The error of a batch in which Xen refused an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchRefused {
    /// The number of entries that are done, counted from the first.
    pub entries_done: usize,
    /// The error of the entry that Xen refused.
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
