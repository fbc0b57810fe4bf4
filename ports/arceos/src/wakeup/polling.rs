//! The kernel has no interrupts, and looks again all the time.

use core::hint::spin_loop;
use core::time::Duration;

/// Interrupts of this line are not waited for.
pub fn listen(_: u8) {}

/// Waits a moment.
pub fn wait(_: Option<Duration>) {
    spin_loop();
}
