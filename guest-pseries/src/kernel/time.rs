//! Measures time by the processor's time base, which counts at 512 MHz on every pseries machine.

const TICKS_PER_US: u64 = 512;

/// Returns the number of ticks since the machine started.
pub(super) fn ticks() -> u64 {
    let ticks;
    // SAFETY: the instruction only reads the time base.
    unsafe { core::arch::asm!("mftb {}", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// Returns the time since the machine started.
pub(super) fn now() -> core::time::Duration {
    core::time::Duration::from_micros(ticks() / TICKS_PER_US)
}

/// Returns the nanoseconds since [`ticks`] returned `earlier`.
pub(super) fn ns_since(earlier: u64) -> u64 {
    (ticks() - earlier) * 1000 / TICKS_PER_US
}

/// Waits for `us` microseconds, without a hypercall.
pub(super) fn pause(us: u64) {
    let start = ticks();
    while ticks() - start < us * TICKS_PER_US {
        core::hint::spin_loop();
    }
}
