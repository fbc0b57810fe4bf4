//! Tells the engine the number of the calling CPU.

use super::wakeup;
use crate::arch::cpu_number;
use hotmem::Platform;

/// The engine's platform. CPU 0 is the CPU that boots.
pub(crate) struct ThisCpu;

impl Platform for ThisCpu {
    #[inline]
    fn cpu(&self) -> usize {
        cpu_number()
    }

    #[inline]
    fn wake_reporter(&self) {
        wakeup::wake_reporter();
    }
}
