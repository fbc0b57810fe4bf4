//! The result of polling a device.

use core::time::Duration;

/// The result of polling a device: the time of the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<F> {
    /// The budget is used up: poll again when convenient.
    Working,
    /// There is nothing to do until this time, or until an event: an interrupt of the device or, for
    /// a balloon, a free of memory.
    WaitUntil(Duration),
    /// There is nothing to do until an event.
    Idle,
    /// The driver has stopped, for this reason. Plugged memory stays usable. Memory of a balloon
    /// stays out of use until the device is reset.
    Failed(F),
}
