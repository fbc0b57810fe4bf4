//! Records the interrupt lines that were raised. The interrupt controller masks a raised line until it is
//! answered, because a device asserts its line until its status is read.

use core::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

/// The limit of the numbers of lines, for a PLIC and for the shared interrupts of a GIC.
const LIMIT: u32 = 1024;
/// The number of consecutive stray interrupts, which no device of this kernel has raised, after which the
/// line stays masked, so that another device on a shared line cannot keep the CPU busy.
const MAX_STRAY: u16 = 16;

/// A bit for each line that was raised. The handler sets it and [`answer`] clears it on the same CPU.
static RAISED: [AtomicU32; LIMIT as usize / 32] =
    [const { AtomicU32::new(0) }; LIMIT as usize / 32];
/// Whether any bit is set.
static IS_ANY_RAISED: AtomicBool = AtomicBool::new(false);
/// The number of consecutive stray interrupts.
static STRAY_COUNT: AtomicU16 = AtomicU16::new(0);

/// Records that a line was raised. The handler calls this when the controller has masked the line.
pub(in crate::arch) fn line_raised(line: u32) {
    if let Some(word) = RAISED.get(line as usize / 32) {
        word.fetch_or(1 << (line % 32), Relaxed);
        IS_ANY_RAISED.store(true, Release);
    }
}

/// Returns whether a line was raised since the last call of [`answer`].
pub(in crate::arch) fn is_any_raised() -> bool {
    IS_ANY_RAISED.load(Relaxed)
}

/// Handles the lines that were raised since the last call. `acknowledge_devices` reads each device's
/// interrupt status, and returns whether any device had interrupted. `unmask` unmasks a line.
pub(in crate::arch) fn answer(acknowledge_devices: impl FnOnce() -> bool, unmask: impl Fn(u32)) {
    if !IS_ANY_RAISED.swap(false, Acquire) {
        return;
    }
    let raised = RAISED.each_ref().map(|word| word.swap(0, Relaxed));
    let stray = if acknowledge_devices() { 0 } else { STRAY_COUNT.load(Relaxed).saturating_add(1) };
    STRAY_COUNT.store(stray, Relaxed);
    if stray >= MAX_STRAY {
        return;
    }
    for (first, mut word) in (0..).step_by(32).zip(raised) {
        while word != 0 {
            unmask(first + word.trailing_zeros());
            word &= word - 1;
        }
    }
}
