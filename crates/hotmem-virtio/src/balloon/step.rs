//! Defines what the driver, and each service of the device, tells its caller to do next.

use super::message::Message;
use super::queues::Queue;
use super::status::Failure;
use core::time::Duration;
use hotmem::Progress;

/// The progress of the driver. Call [`Driver::step`](super::Driver::step) again when the device
/// interrupts or memory is freed; after `Pending(time)`, at that time at the latest. A failure stops
/// the driver. The device then keeps the memory that it holds until it is reset.
pub type Step = Progress<Result<Action, Failure>, Duration>;

/// What the caller must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put this request on its queue, then step again. The buffers of the request belong to the
    /// device until the device has used them, however long that takes.
    Send(Message),
    /// Write this number to the field `actual` of the configuration, then step again.
    SetActual(u32),
    /// The device has not answered on this queue for too long: reset it, and begin again with a
    /// [new driver](super::Driver::new). If it cannot be started again, call
    /// [`Memory::device_reset`](super::Memory::device_reset).
    Reset(Queue),
}

/// Returns the step of a service that has nothing to do before this time, or before an event if the
/// time is `None`.
pub(super) fn wait_until(time: Option<Duration>) -> Step {
    time.map_or(Step::Idle, Step::Pending)
}
