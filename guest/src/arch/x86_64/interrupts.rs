//! Interrupts of devices: records those that have arrived, and waits for the next one.

use super::vectors::{FLUSH, MESSAGES, Message};
use super::{lapic, pic};
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use hotmem_guest::raised_lines::RaisedLines;
use x86_64::instructions::interrupts;

/// A bit for each IRQ that is enabled for a device.
static ENABLED_LINES: AtomicU16 = AtomicU16::new(0);
/// The IRQs that were raised.
static RAISED_LINES: RaisedLines<1> = RaisedLines::new();
/// A bit for each message-signalled interrupt that has arrived; [`take_messages`] clears it.
static MESSAGES_ARRIVED: AtomicU32 = AtomicU32::new(0);

/// Returns whether a device can interrupt by its line, even if the line's number is not known.
pub(crate) fn has_line(_: Option<u32>) -> bool {
    pic::exists()
}

/// Enables the IRQ of a PCI device. Also enables all level-triggered IRQs, which firmware has set
/// up for PCI, because some firmware reports a wrong IRQ. Returns whether any IRQ was enabled.
pub(crate) fn enable_shared_line(irq: Option<u32>) -> bool {
    enable_lines(irq.map_or(0, irq_bit) | pic::level_triggered())
}

/// Enables an IRQ that only one device uses. Returns whether the IRQ is available.
pub(crate) fn enable_own_line(irq: u32) -> bool {
    enable_lines(irq_bit(irq))
}

/// Enables an IRQ that only one device uses and that is raised for a moment. Returns whether the
/// IRQ is available.
pub(crate) fn enable_pulsed_line(irq: u32) -> bool {
    // The controllers keep the edge of an ISA interrupt.
    enable_own_line(irq)
}

fn enable_lines(lines: u16) -> bool {
    let lines = if pic::exists() { lines & pic::FREE_LINES } else { 0 };
    ENABLED_LINES.fetch_or(lines, Relaxed);
    pic::unmask_all(lines);
    lines != 0
}

fn irq_bit(irq: u32) -> u16 {
    1u16.checked_shl(irq).unwrap_or(0)
}

/// Returns a bit for each message-signalled interrupt that has arrived since the last call.
pub(crate) fn take_messages() -> u32 {
    MESSAGES_ARRIVED.swap(0, Relaxed)
}

/// Handles the IRQs that were raised since the last call. `acknowledge_devices` reads each device's
/// interrupt status, and returns whether any device had interrupted.
pub(crate) fn answer_lines(acknowledge_devices: impl FnMut() -> bool) {
    RAISED_LINES.answer(acknowledge_devices, |irq| pic::unmask_all(irq_bit(irq)));
}

/// Halts until a device interrupts or the timer ticks. Does not halt if an interrupt is pending, or if
/// there is `other_work`.
pub(crate) fn wait_for_interrupt(other_work: impl FnOnce() -> bool) {
    halt_unless(|| other_work() || RAISED_LINES.is_any() || MESSAGES_ARRIVED.load(Relaxed) != 0);
}

/// Halts until an interrupt arrives, unless there is `work` already. An interrupt that arrives after
/// `work` was asked ends the halt.
pub(crate) fn halt_unless(work: impl FnOnce() -> bool) {
    interrupts::disable();
    if work() {
        interrupts::enable();
    } else {
        // No interrupt is lost between `sti` and `hlt`, because `sti` takes effect only after the
        // instruction that follows it.
        interrupts::enable_and_hlt();
    }
}

/// Disables the interrupts of the calling CPU.
pub(crate) fn disable() {
    interrupts::disable();
}

/// Interrupts all other CPUs, which ends their halt.
pub(crate) fn interrupt_others() {
    lapic::interrupt_others(FLUSH);
}

/// Records a message. The handler of its vector calls this.
pub(super) fn message_arrived(message: Message) {
    MESSAGES_ARRIVED.fetch_or(1 << (message % MESSAGES), Relaxed);
}

/// Records that an IRQ was raised, and masks it. The handler of its vector calls this.
pub(super) fn line_raised(irq: u8) {
    let line = irq_bit(irq.into());
    if ENABLED_LINES.load(Relaxed) & line != 0 {
        pic::mask(irq);
        pic::end_of_interrupt(irq);
        RAISED_LINES.raise(irq.into());
    }
    // Any other IRQ is masked, so its interrupt was spurious, and needs no end of interrupt.
}
