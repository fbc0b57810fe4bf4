//! Makes hypercalls, and reads the TSC.

use hotmem_xen::{Errno, SyscallHypervisor};

/// Makes any hypercall.
///
/// # Safety
/// The arguments must satisfy the requirements of the hypercall.
pub(crate) unsafe fn hypercall(number: u64, args: [u64; 5]) -> Result<u64, Errno> {
    // SAFETY: only Xen starts this kernel.
    let mut xen = unsafe { SyscallHypervisor::new() };
    // SAFETY: the caller guarantees it.
    unsafe { xen.call(number, args) }
}

/// Reads the TSC.
pub(crate) fn cycles() -> u64 {
    // SAFETY: every processor that Xen supports has a TSC.
    unsafe { core::arch::x86_64::_rdtsc() }
}
