//! Wakes the CPU that reports free memory when another call has freed memory.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether memory that may be reported was freed. Any CPU sets the flag, and the boot CPU
/// clears it. `Relaxed` is enough, because the reporter reads only the engine's words, which have
/// orderings of their own.
static MEMORY_FREED: AtomicBool = AtomicBool::new(false);

/// Makes the next [`wait_for_interrupt`](crate::arch::interrupts::wait_for_interrupt) of the boot CPU return
/// without halting. If the boot CPU is halted already, it wakes at the next timer tick.
pub(crate) fn wake_reporter() {
    MEMORY_FREED.store(true, Relaxed);
}

/// Returns whether [`wake_reporter`] was called since the last call.
pub(crate) fn take_memory_freed() -> bool {
    MEMORY_FREED.swap(false, Relaxed)
}
