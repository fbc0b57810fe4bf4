//! The watchdog, and the timer ticks that it counts.

use super::pit;
use hotmem_guest::cmdline::Options;
use hotmem_guest::watchdog::Watchdog;

/// The watchdog of the run, which records the current step of the kernel.
pub(crate) static WATCHDOG: Watchdog = Watchdog::new();

/// Timer ticks in a second. At each tick the watchdog counts. Devices and slots are polled too, in
/// case an interrupt was lost.
pub(crate) const TICKS: u32 = 20;
/// Timer ticks in a second if a device has no interrupt and must be polled.
pub(crate) const TICKS_WITHOUT_IRQ: u32 = 100;

/// Starts the timer, and sets the watchdog's limit in its ticks.
pub(crate) fn start_ticking(per_second: u32, options: &Options) -> Result<(), pit::NoTimer> {
    WATCHDOG.set_limit(options.watchdog_seconds.saturating_mul(per_second));
    pit::tick_at(per_second)
}
