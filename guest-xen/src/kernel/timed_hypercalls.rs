//! Makes hypercalls and counts their cycles.

use super::hypercall::cycles;
use core::ops::{Deref, DerefMut};
use hotmem_xen::{BatchRefused, DomId, Errno, Hypervisor, MmuExtOp, MmuUpdate, SyscallHypervisor};

/// Hypercalls whose cycles are counted.
pub(crate) struct TimedHypercalls {
    xen: SyscallHypervisor,
    cycles: u64,
    flushes: u64,
}

impl TimedHypercalls {
    pub(crate) fn new(xen: SyscallHypervisor) -> TimedHypercalls {
        TimedHypercalls { xen, cycles: 0, flushes: 0 }
    }

    /// Returns the total cycles of all hypercalls.
    pub(crate) fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Returns the total number of requested flushes.
    pub(crate) fn flushes(&self) -> u64 {
        self.xen.flushes() + self.flushes
    }

    /// Makes any hypercall, which requests this many flushes.
    ///
    /// # Safety
    /// The arguments must satisfy the requirements of the hypercall.
    pub(crate) unsafe fn call(
        &mut self,
        number: u64,
        args: [u64; 5],
        flushes: u64,
    ) -> Result<u64, Errno> {
        self.flushes += flushes;
        // SAFETY: the caller guarantees it.
        self.time(|xen| unsafe { xen.call(number, args) })
    }

    fn time<R>(&mut self, call: impl FnOnce(&mut SyscallHypervisor) -> R) -> R {
        let start = cycles();
        let result = call(&mut self.xen);
        self.cycles += cycles() - start;
        result
    }
}

impl Deref for TimedHypercalls {
    type Target = SyscallHypervisor;

    fn deref(&self) -> &SyscallHypervisor {
        &self.xen
    }
}

impl DerefMut for TimedHypercalls {
    fn deref_mut(&mut self) -> &mut SyscallHypervisor {
        &mut self.xen
    }
}

impl Hypervisor for TimedHypercalls {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), BatchRefused> {
        self.time(|xen| xen.mmu_update(updates, owner))
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), BatchRefused> {
        self.time(|xen| xen.mmuext_op(ops))
    }

    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>) {
        self.time(|xen| xen.mmuext_op_then_update(ops, updates))
    }
}
