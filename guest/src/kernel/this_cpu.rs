//! Tells the engine the number of the calling CPU.

use super::limits::MAX_CPUS;
use super::wakeup;
use core::arch::asm;
use hotmem::Platform;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

/// The engine's platform. CPU 0 is the CPU that boots.
pub(crate) struct ThisCpu;

/// The numbers of all CPUs. The GS base of each CPU points to the CPU's number.
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
        // SAFETY: the CPU has called `set_number`, so its GS base points to an entry of `NUMBERS`.
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

/// Sets the number of the calling CPU. The CPU must call this before it uses
/// [`FRAMES`](super::memory::FRAMES).
pub(crate) fn set_number(cpu: usize) {
    GsBase::write(VirtAddr::from_ptr(&raw const NUMBERS[cpu]));
}
