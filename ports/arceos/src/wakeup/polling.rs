//! Lets the kernel poll devices, because it has no interrupts.

use core::hint::spin_loop;
use core::time::Duration;

/// Does nothing, because devices cannot interrupt.
pub fn listen(_: u8) {}

/// Pauses for a short time.
pub fn wait(_: Option<Duration>) {
    spin_loop();
}
