//! The wakeup of the reporter by CPUs that free memory.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether memory that may be reported was freed. Any CPU sets it for the one that waits. `Relaxed`
/// is enough: the reporter reads the engine's words, which are ordered by themselves.
static MEMORY_FREED: AtomicBool = AtomicBool::new(false);

/// Ends [`wait`](super::trap::wait), or the next one, on the CPU that boots. If another CPU calls
/// this, the wait ends with the next tick.
pub(crate) fn wake_reporter() {
    MEMORY_FREED.store(true, Relaxed);
}

/// Returns whether the reporter was woken since the last call.
pub(crate) fn take() -> bool {
    MEMORY_FREED.swap(false, Relaxed)
}
