//! Measures time by the CPU's counter `time`, whose frequency the device tree names.

use super::IoPort;
use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The frequency in Hz; 0 until it is known. Relaxed: no other data depend on it.
static FREQUENCY: AtomicU64 = AtomicU64::new(0);

/// The counter at the kernel's first instructions.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(u64);

/// A clock of the microseconds since the kernel's first instructions.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: u64,
    hz: u64,
}

/// The device tree names no frequency.
pub(crate) struct NoFrequency;

impl Stopwatch {
    /// Starts a measurement.
    pub(crate) fn start() -> Self {
        Stopwatch(counter())
    }

    /// Makes the clock. The counter needs no comparison with other timers.
    pub(crate) fn calibrate(self, _: Option<u32>, _: Option<IoPort>) -> Result<Clock, NoFrequency> {
        match frequency() {
            0 => Err(NoFrequency),
            hz => Ok(Clock { start: self.0, hz }),
        }
    }
}

impl Clock {
    pub(crate) fn now_us(&self) -> u64 {
        let counts = u128::from(counter().wrapping_sub(self.start));
        u64::try_from(counts * 1_000_000 / u128::from(self.hz)).unwrap_or(u64::MAX)
    }
}

/// Returns the frequency of the counter in Hz, or 0 if it is not known.
pub(super) fn frequency() -> u64 {
    FREQUENCY.load(Relaxed)
}

/// Sets the frequency.
pub(super) fn set_frequency(hz: u64) {
    FREQUENCY.store(hz, Relaxed);
}

/// Returns the counter. The fences keep the read in order with the work that is measured: a read of the
/// counter is a read of a device (unprivileged specification, 7.1).
pub(super) fn counter() -> u64 {
    let counter;
    // SAFETY: reading the register has no effect.
    unsafe {
        asm!(
            "fence iorw, i",
            "rdtime {}",
            "fence i, iorw",
            out(reg) counter,
            options(nostack, preserves_flags)
        );
    }
    counter
}

impl fmt::Display for NoFrequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device tree names no timebase-frequency")
    }
}
