//! The number of the calling CPU, which the engine asks for.

use super::limits::MAX_CPUS;
use super::wakeup;
use core::arch::asm;
use hotmem::Platform;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

/// The platform of the engine. CPU 0 is the one that boots.
pub(crate) struct ThisCpu;

/// The CPU numbers. The GS base of each CPU points to its own number.
static NUMBERS: [usize; MAX_CPUS] = {
    let mut numbers = [0; MAX_CPUS];
    let mut n = 0;
    while n < MAX_CPUS {
        numbers[n] = n;
        n += 1;
    }
    numbers
};

impl Platform for ThisCpu {
    fn cpu(&self) -> usize {
        let number;
        // SAFETY: GS points to the CPU's entry in `NUMBERS`, since `set_number`.
        unsafe {
            asm!(
                "mov {}, qword ptr gs:[0]",
                out(reg) number,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        number
    }

    fn wake_reporter(&self) {
        wakeup::wake_reporter();
    }
}

/// Sets the number of the calling CPU. Before that it must not use
/// [`FRAMES`](super::memory::FRAMES).
pub(crate) fn set_number(cpu: usize) {
    GsBase::write(VirtAddr::from_ptr(&raw const NUMBERS[cpu]));
}
