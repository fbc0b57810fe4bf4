//! Starts the timer, whose ticks the watchdog counts.

use crate::arch;
use core::fmt;
use hotmem_guest::cmdline::Options;
use hotmem_guest::watchdog::Watchdog;

/// The watchdog of the run. It records the kernel's current step, and detects a step that hangs.
pub(crate) static WATCHDOG: Watchdog = Watchdog::new();

/// The number of timer ticks in a second. At each tick the watchdog counts, and devices and the
/// slots of DIMMs are polled in case an interrupt was lost.
pub(crate) const TICKS: u32 = 20;
/// The number of timer ticks in a second if a device cannot interrupt and must be polled.
pub(crate) const TICKS_WITHOUT_IRQ: u32 = 100;

/// There is no timer that can interrupt.
pub(crate) struct NoTimer;

/// Starts the timer with `per_second` ticks in a second, and sets the watchdog's limit.
pub(crate) fn start_ticking(per_second: u32, options: &Options) -> Result<(), NoTimer> {
    WATCHDOG.set_limit(options.watchdog_seconds.saturating_mul(per_second));
    if arch::tick_at(per_second) { Ok(()) } else { Err(NoTimer) }
}

impl fmt::Display for NoTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no timer can interrupt")
    }
}
