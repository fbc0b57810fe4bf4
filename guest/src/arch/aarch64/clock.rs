//! Measures time by the CPU's virtual counter, whose frequency the CPU knows.

use super::IoPort;
use core::arch::asm;
use core::convert::Infallible;

/// The counter at the kernel's first instructions.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(u64);

/// A clock of the microseconds since the kernel's first instructions.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: u64,
    hz: u64,
}

impl Stopwatch {
    /// Starts a measurement.
    pub(crate) fn start() -> Self {
        Stopwatch(counter())
    }

    /// Makes the clock. The counter needs no comparison with other timers.
    pub(crate) fn calibrate(self, _: Option<u32>, _: Option<IoPort>) -> Result<Clock, Infallible> {
        Ok(Clock { start: self.0, hz: frequency() })
    }
}

impl Clock {
    pub(crate) fn now_us(&self) -> u64 {
        let counts = u128::from(counter().wrapping_sub(self.start));
        u64::try_from(counts * 1_000_000 / u128::from(self.hz)).unwrap_or(u64::MAX)
    }
}

/// Returns the frequency of the counter in Hz.
pub(super) fn frequency() -> u64 {
    let hz: u64;
    // SAFETY: reading the register has no effect.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) }
    // Firmware must set the register, so zero would be a defect of the machine.
    hz.max(1)
}

fn counter() -> u64 {
    let counter;
    // SAFETY: reading the register has no effect. `isb` keeps the read in order with the work that is
    // measured.
    unsafe {
        asm!("isb", "mrs {}, cntvct_el0", out(reg) counter, options(nomem, nostack, preserves_flags));
    }
    counter
}
