//! Numbers the CPUs. The GS base of each CPU points to the CPU's number.

use core::arch::asm;
use hotmem_guest::limits::MAX_CPUS;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

static NUMBERS: [usize; MAX_CPUS] = {
    let mut numbers = [0; MAX_CPUS];
    let mut n = 0;
    while n < MAX_CPUS {
        numbers[n] = n;
        n += 1;
    }
    numbers
};

/// Returns the number of the calling CPU. The CPU that boots has number 0. It is inlined, because the
/// engine asks for it in every operation.
#[inline]
pub(crate) fn cpu_number() -> usize {
    let number;
    // SAFETY: the CPU has called `set`, so its GS base points to an entry of `NUMBERS`.
    unsafe {
        asm!(
            "mov {}, qword ptr gs:[0]",
            out(reg) number,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    number
}

/// Sets the number of the calling CPU. The CPU must call this before it uses
/// the kernel's frames.
pub(super) fn set(cpu: usize) {
    GsBase::write(VirtAddr::from_ptr(&raw const NUMBERS[cpu]));
}
