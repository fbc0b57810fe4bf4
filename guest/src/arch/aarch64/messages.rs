//! Records the messages of devices that have arrived.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of a message by which a device interrupts. It is below [`MESSAGES`].
pub(crate) type Message = u8;
/// The number of messages of devices.
pub(crate) const MESSAGES: u8 = 32;

/// A bit for each message that has arrived; [`take`] clears it.
static ARRIVED: AtomicU32 = AtomicU32::new(0);

/// Records a message. The handler of interrupts calls this.
pub(super) fn arrived(message: u32) {
    ARRIVED.fetch_or(1 << (message % u32::from(MESSAGES)), Relaxed);
}

/// Returns whether a message has arrived since the last call of [`take`].
pub(super) fn has_any_arrived() -> bool {
    ARRIVED.load(Relaxed) != 0
}

/// Returns a bit for each message that has arrived since the last call.
pub(super) fn take() -> u32 {
    ARRIVED.swap(0, Relaxed)
}
