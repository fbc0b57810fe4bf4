//! Interrupts of devices, and halting until one arrives.

use super::clock;
use core::arch::asm;
use core::convert::Infallible;
use core::ptr::NonNull;
use hotmem::PfnRange;
use hotmem_guest::device_tree::DeviceTree;
use sbi_rt::HartMask;

/// The number of a message by which a device would interrupt. It is below [`MESSAGES`].
pub(crate) type Message = u8;
/// The number of messages of devices.
pub(crate) const MESSAGES: u8 = 32;

/// The bits of `sstatus` and of `sip` and `sie`.
const INTERRUPTS_ON: u64 = 1 << 1;
const SOFTWARE: u64 = 1 << 1;

/// Messages of devices, which a PLIC does not take. There is no value.
#[derive(Clone, Copy)]
pub(crate) struct MessageTarget(Infallible);

impl MessageTarget {
    pub(crate) fn this_cpu() -> Option<Self> {
        None
    }

    pub(crate) fn address_and_data(self, _: u16, _: Message) -> Option<(u64, u32)> {
        match self.0 {}
    }
}

/// Takes the timer's frequency from the device tree, and enables interrupts.
pub(crate) fn open_interrupts<E>(
    tree: Option<&DeviceTree<'_>>,
    _: impl FnMut(u64, u64) -> Result<NonNull<u8>, E>,
    _: fn(u32) -> Option<PfnRange>,
) -> Result<(), E> {
    clock::set_frequency(tree.and_then(|tree| tree.riscv.timer_hz).unwrap_or(0));
    enable();
    Ok(())
}

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

/// Returns 0, because no device sends messages.
pub(crate) fn take_messages() -> u32 {
    0
}

/// Does nothing, because no line is enabled.
pub(crate) fn answer_lines(_: impl FnOnce() -> bool) {}

/// Records that a line was raised. The handler of interrupts calls this.
pub(super) fn lines_raised() {}

/// Halts until a device interrupts or the timer ticks. Does not halt if an interrupt is pending, or if
/// there is `other_work`.
pub(crate) fn wait_for_interrupt(other_work: impl FnOnce() -> bool) {
    halt_unless(other_work);
}

/// Halts until an interrupt arrives, unless there is `work` already. An interrupt that arrives after
/// `work` was asked ends the halt: `wfi` ends when an enabled one is pending, even while all are masked
/// (privileged specification, 3.3.3).
pub(crate) fn halt_unless(work: impl FnOnce() -> bool) {
    disable();
    if !work() {
        // SAFETY: the instruction only waits.
        unsafe { asm!("wfi", options(nostack, preserves_flags)) }
    }
    enable();
}

/// Enables the interrupts of the calling CPU.
pub(super) fn enable() {
    // SAFETY: the interrupts have handlers.
    unsafe {
        asm!(
            "csrs sie, {}",
            "csrs sstatus, {}",
            in(reg) SOFTWARE,
            in(reg) INTERRUPTS_ON,
            options(nostack, preserves_flags)
        );
    }
}

/// Disables the interrupts of the calling CPU.
pub(crate) fn disable() {
    // SAFETY: a mask of interrupts affects no memory.
    unsafe { asm!("csrc sstatus, {}", in(reg) INTERRUPTS_ON, options(nostack, preserves_flags)) }
}

/// Ends the halt of all other CPUs (SBI, chapter "IPI Extension").
pub(crate) fn interrupt_others() {
    // A CPU that is not interrupted sees the work at its next interrupt. The fence makes earlier writes
    // visible to the CPUs that are.
    // SAFETY: a barrier.
    unsafe { asm!("fence w, o", options(nostack, preserves_flags)) }
    let _ = sbi_rt::send_ipi(HartMask::all());
}

/// Ends the interrupt of [`interrupt_others`].
pub(super) fn answer_software_interrupt() {
    // SAFETY: the interrupt has only ended a halt.
    unsafe { asm!("csrc sip, {}", in(reg) SOFTWARE, options(nostack, preserves_flags)) }
}
