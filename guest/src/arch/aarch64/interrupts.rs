//! Interrupts of devices: records those that have arrived, and waits for the next one. Devices interrupt
//! by messages or by lines.

use super::cpu_number::cpu_number;
use super::{gic, mask, messages};
use crate::arch::flat_image::RAISED_LINES;
use core::arch::asm;

/// Returns whether a device can interrupt by this line.
pub(crate) fn has_line(line: Option<u32>) -> bool {
    line.is_some_and(gic::has_line)
}

/// Enables the interrupt line of a PCI device. Returns whether the line is available.
pub(crate) fn enable_shared_line(line: Option<u32>) -> bool {
    line.is_some_and(gic::enable_line)
}

/// Enables an interrupt line that only one device uses. Returns whether the line is available.
pub(crate) fn enable_own_line(line: u32) -> bool {
    gic::enable_line(line)
}

/// Enables an interrupt line that only one device uses and that is raised for a moment. Returns whether the
/// line is available.
pub(crate) fn enable_pulsed_line(line: u32) -> bool {
    gic::enable_pulsed_line(line)
}

/// Returns a bit for each message that has arrived since the last call.
pub(crate) fn take_messages() -> u32 {
    messages::take()
}

/// Handles the lines that were raised since the last call. `acknowledge_devices` reads each device's
/// interrupt status, and returns whether any device had interrupted.
pub(crate) fn answer_lines(acknowledge_devices: impl FnMut() -> bool) {
    RAISED_LINES.answer(acknowledge_devices, gic::unmask_line);
}

/// Halts until a device interrupts or the timer ticks. Does not halt if an interrupt is pending, or if
/// there is `other_work`.
pub(crate) fn wait_for_interrupt(other_work: impl FnOnce() -> bool) {
    halt_unless(|| other_work() || RAISED_LINES.is_any() || messages::has_any_arrived());
}

/// Halts until an interrupt arrives, unless there is `work` already. An interrupt that arrives after
/// `work` was asked ends the halt. The first CPU gets interrupts, and the others get the event of
/// [`interrupt_others`].
pub(crate) fn halt_unless(work: impl FnOnce() -> bool) {
    mask::disable();
    let has_work = work();
    // SAFETY: the instructions only wait. With interrupts masked, `wfi` still ends when one is pending,
    // and the event is kept until the next `wfe`.
    unsafe {
        match (has_work, cpu_number()) {
            (true, _) => {}
            (false, 0) => asm!("wfi", options(nostack, preserves_flags)),
            (false, _) => asm!("wfe", options(nostack, preserves_flags)),
        }
    }
    mask::enable();
}

/// Disables the interrupts of the calling CPU.
pub(crate) fn disable() {
    mask::disable();
}

/// Ends the halt of all other CPUs.
pub(crate) fn interrupt_others() {
    // SAFETY: the event only wakes CPUs. The barrier makes earlier writes visible to them.
    unsafe { asm!("dsb ish", "sev", options(nostack, preserves_flags)) }
}
