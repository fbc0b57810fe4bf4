//! What the kernel does when an exception or an interrupt occurs. The kernel sets this once, so that an
//! architecture uses nothing of the kernel above it.

use core::fmt;
use spin::Once;

/// The kernel's part of the handlers.
pub(crate) struct Handlers {
    /// Ends the run for a reason.
    pub(crate) give_up: fn(&dyn fmt::Display) -> !,
    /// Handles a tick of the timer.
    pub(crate) tick: fn(),
    /// Handles an access to an address that is not mapped. Returns whether it is mapped now.
    pub(crate) page_is_absent: fn(u64) -> bool,
    /// Runs a CPU other than the first one.
    pub(crate) run_other_cpu: fn(usize) -> !,
}

static HANDLERS: Once<&'static Handlers> = Once::new();

/// Sets the kernel's handlers, before the first exception.
pub(super) fn set(handlers: &'static Handlers) {
    HANDLERS.call_once(|| handlers);
}

/// Returns the kernel's handlers. Halts if they are not set yet.
pub(super) fn get() -> &'static Handlers {
    HANDLERS.wait()
}
