//! Calling Xen, and the processor's clock.

use hotmem_xen::{Errno, Syscall};

/// Returns any hypercall.
///
/// # Safety
/// As the hypercall says of its arguments.
pub(crate) unsafe fn hypercall(number: u64, args: [u64; 5]) -> Result<u64, Errno> {
    // SAFETY: this kernel is started by Xen and by nothing else.
    let mut xen = unsafe { Syscall::new() };
    // SAFETY: as the caller says.
    unsafe { xen.call(number, args) }
}

/// Returns the processor's clock.
pub(crate) fn cycles() -> u64 {
    // SAFETY: every processor that Xen runs on has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
