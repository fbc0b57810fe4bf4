//! Starts the timer, whose ticks the watchdog counts.

use super::pit;
use hotmem_guest::cmdline::Options;
use hotmem_guest::watchdog::Watchdog;

/// The watchdog of the run. It records the kernel's current step, and detects a step that hangs.
pub(crate) static WATCHDOG: Watchdog = Watchdog::new();

/// The number of timer ticks in a second. At each tick the watchdog counts, and devices and slots
/// are polled in case an interrupt was lost.
pub(crate) const TICKS: u32 = 20;
/// The number of timer ticks in a second if a device cannot interrupt and must be polled.
pub(crate) const TICKS_WITHOUT_IRQ: u32 = 100;

/// Starts the timer with `per_second` ticks in a second, and sets the watchdog's limit.
pub(crate) fn start_ticking(per_second: u32, options: &Options) -> Result<(), pit::NoTimer> {
    WATCHDOG.set_limit(options.watchdog_seconds.saturating_mul(per_second));
    pit::tick_at(per_second)
}
