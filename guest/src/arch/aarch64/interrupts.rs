//! Interrupts of devices: records those that have arrived, and waits for the next one. Devices interrupt
//! by messages; their lines are not used.

use super::cpu_number::cpu_number;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of a message by which a device interrupts. It is below [`MESSAGES`].
pub(crate) type Message = u8;
/// The number of messages of devices.
pub(crate) const MESSAGES: u8 = 32;

/// A bit for each message that has arrived; [`take_messages`] clears it.
static MESSAGES_ARRIVED: AtomicU32 = AtomicU32::new(0);

/// Returns whether the lines of devices can interrupt. The kernel does not use them.
pub(crate) fn has_lines() -> bool {
    false
}

/// Enables no line. Returns false, so that the device is polled.
pub(crate) fn enable_shared_line(_: Option<u8>) -> bool {
    false
}

/// Enables no line. Returns false, so that the device is polled.
pub(crate) fn enable_own_line(_: u8) -> bool {
    false
}

/// Returns a bit for each message that has arrived since the last call.
pub(crate) fn take_messages() -> u32 {
    MESSAGES_ARRIVED.swap(0, Relaxed)
}

/// Does nothing, because no line is enabled.
pub(crate) fn answer_lines(_: impl FnOnce() -> bool) {}

/// Halts until a device interrupts or the timer ticks. Does not halt if an interrupt is pending, or if
/// there is `other_work`.
pub(crate) fn wait_for_interrupt(other_work: impl FnOnce() -> bool) {
    halt_unless(|| other_work() || MESSAGES_ARRIVED.load(Relaxed) != 0);
}

/// Halts until an interrupt arrives, unless there is `work` already. An interrupt that arrives after
/// `work` was asked ends the halt. The first CPU gets interrupts, and the others get the event of
/// [`interrupt_others`].
pub(crate) fn halt_unless(work: impl FnOnce() -> bool) {
    disable();
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
    enable();
}

/// Enables the interrupts of the calling CPU.
pub(super) fn enable() {
    // SAFETY: the interrupts have handlers.
    unsafe { asm!("msr daifclr, #2", "isb", options(nostack, preserves_flags)) }
}

/// Disables the interrupts of the calling CPU.
pub(crate) fn disable() {
    // SAFETY: a mask of interrupts affects no memory.
    unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) }
}

/// Ends the halt of all other CPUs.
pub(crate) fn interrupt_others() {
    // SAFETY: the event only wakes CPUs. The barrier makes earlier writes visible to them.
    unsafe { asm!("dsb ish", "sev", options(nostack, preserves_flags)) }
}

/// Records a message. The handler of interrupts calls this.
pub(super) fn message_arrived(message: u32) {
    MESSAGES_ARRIVED.fetch_or(1 << (message % u32::from(MESSAGES)), Relaxed);
}
