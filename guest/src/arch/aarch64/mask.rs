//! Masks the interrupts of the calling CPU.

use core::arch::asm;

/// Enables the interrupts of the calling CPU.
pub(super) fn enable() {
    // SAFETY: the interrupts have handlers.
    unsafe { asm!("msr daifclr, #2", "isb", options(nostack, preserves_flags)) }
}

/// Disables the interrupts of the calling CPU.
pub(super) fn disable() {
    // SAFETY: a mask of interrupts affects no memory.
    unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) }
}
