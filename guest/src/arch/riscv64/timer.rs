//! Makes the timer of the first CPU interrupt it at each tick (SBI, chapter "Timer Extension").

use super::clock;
use crate::arch::handlers;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The bit of the timer in `sie`.
const TIMER: u64 = 1 << 5;

/// The number of counts between two ticks. Relaxed: only the first CPU uses it.
static COUNTS_PER_TICK: AtomicU64 = AtomicU64::new(0);

/// Makes the timer interrupt the first CPU `per_second` times a second, after
/// [`open_interrupts`](super::open_interrupts). Returns whether the timer can interrupt.
pub(crate) fn tick_at(per_second: u32) -> bool {
    if clock::frequency() == 0 {
        return false;
    }
    COUNTS_PER_TICK.store((clock::frequency() / u64::from(per_second)).max(1), Relaxed);
    let has_timer = start_countdown();
    if has_timer {
        // SAFETY: the timer's interrupt has a handler.
        unsafe { asm!("csrs sie, {}", in(reg) TIMER, options(nostack, preserves_flags)) }
    }
    has_timer
}

/// Handles a tick.
pub(super) fn handle_tick() {
    start_countdown();
    (handlers::get().tick)();
}

/// Makes the timer interrupt at the next tick, and not before. Returns whether there is a timer.
fn start_countdown() -> bool {
    let next = clock::counter().saturating_add(COUNTS_PER_TICK.load(Relaxed));
    sbi_rt::set_timer(next).is_ok()
}
