//! The time base: 512 MHz on every pseries machine.

const TICKS_PER_US: u64 = 512;

/// Ticks since the machine started.
pub(super) fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mftb {}", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// Time since the machine started.
pub(super) fn now() -> core::time::Duration {
    core::time::Duration::from_micros(ticks() / TICKS_PER_US)
}

/// Nanoseconds since an earlier reading.
pub(super) fn ns_since(earlier: u64) -> u64 {
    (ticks() - earlier) * 1000 / TICKS_PER_US
}

/// Waits for this many microseconds without a hypercall.
pub(super) fn pause(us: u64) {
    let start = ticks();
    while ticks() - start < us * TICKS_PER_US {
        core::hint::spin_loop();
    }
}
