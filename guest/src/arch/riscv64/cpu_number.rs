//! Numbers the CPUs. The boot code writes the number of each CPU to `tp`, which no other code uses: the
//! kernel has no thread-local variables.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The ID of the hart that boots. The boot code writes it.
#[unsafe(no_mangle)]
static boot_hart: AtomicU64 = AtomicU64::new(0);

/// Returns the number of the calling CPU. The CPU that boots has number 0, whatever its hart ID is. It is
/// inlined, because the engine asks for it in every operation.
#[inline]
pub(crate) fn cpu_number() -> usize {
    let number;
    // SAFETY: the boot code has written the register, and reading it has no effect.
    unsafe { asm!("mv {}, tp", out(reg) number, options(pure, nomem, nostack, preserves_flags)) }
    number
}

/// Returns the ID of the hart that boots, which may be any of the machine's.
pub(super) fn boot_hart_id() -> u64 {
    boot_hart.load(Relaxed)
}
