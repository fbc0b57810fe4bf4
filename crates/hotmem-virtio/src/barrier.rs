//! Orders accesses to memory that a device shares, and to its registers, as the device sees them.
//!
//! The fences of `core` order accesses as other processors see them, which suffices for a device
//! that a hypervisor simulates. A device of its own is an observer in the outer shareable domain on
//! aarch64, and the target of input and output on riscv64 (VIRTIO 1.3, 6: `ORDER_PLATFORM`).

#![allow(unsafe_code)]

use core::sync::atomic::{Ordering, fence};

/// Orders all writes before this call, to memory and to registers, before all writes after it.
#[inline]
pub(crate) fn order_writes() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither memory nor registers.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("fence ow, ow", options(nostack, preserves_flags));
    }
    fence(Ordering::Release);
}

/// Orders all reads before this call, of memory and of registers, before all accesses after it.
#[inline]
pub(crate) fn order_reads() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither memory nor registers.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("fence ir, iorw", options(nostack, preserves_flags));
    }
    fence(Ordering::Acquire);
}

/// Orders all accesses before this call, to memory and to registers, before all accesses after it.
#[inline]
pub(crate) fn order_all() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither memory nor registers.
    unsafe {
        core::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("fence iorw, iorw", options(nostack, preserves_flags));
    }
    fence(Ordering::SeqCst);
}
