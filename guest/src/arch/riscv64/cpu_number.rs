//! Numbers the CPUs. The boot code writes the number of each CPU to `tp`, which no other code uses: the
//! kernel has no thread-local variables.

use core::arch::asm;

/// Returns the number of the calling CPU. The CPU that boots has number 0, whatever its hart ID is. It is
/// inlined, because the engine asks for it in every operation.
#[inline]
pub(crate) fn cpu_number() -> usize {
    let number;
    // SAFETY: the boot code has written the register, and reading it has no effect.
    unsafe { asm!("mv {}, tp", out(reg) number, options(pure, nomem, nostack, preserves_flags)) }
    number
}
