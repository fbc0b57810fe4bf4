//! Interrupts of devices, and halting until one arrives.

use super::cpu_number::boot_hart_id;
use super::{clock, plic};
use crate::arch::flat_image::RAISED_LINES;
use crate::arch::handlers;
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

/// Takes the timer's frequency from the device tree, opens the PLIC if there is one, and enables
/// interrupts. `map` maps registers, given their physical address and size.
pub(crate) fn open_interrupts<E>(
    tree: Option<&DeviceTree<'_>>,
    map: impl FnMut(u64, u64) -> Result<NonNull<u8>, E>,
    _: fn(u32) -> Option<PfnRange>,
) -> Result<(), E> {
    if let Some(riscv) = tree.map(|tree| &tree.riscv) {
        clock::set_frequency(riscv.timer_hz.unwrap_or(0));
        plic::open(riscv, boot_hart_id(), map)?;
    }
    enable();
    Ok(())
}

/// Returns whether a device can interrupt by this line.
pub(crate) fn has_line(line: Option<u32>) -> bool {
    line.is_some_and(plic::has)
}

/// Enables the interrupt line of a PCI device. Returns whether the line is available.
pub(crate) fn enable_shared_line(line: Option<u32>) -> bool {
    line.is_some_and(plic::enable)
}

/// Enables an interrupt line that only one device uses. Returns whether the line is available.
pub(crate) fn enable_own_line(line: u32) -> bool {
    plic::enable(line)
}

/// Enables an interrupt line that only one device uses and that is raised for a moment. Returns whether the
/// line is available.
pub(crate) fn enable_pulsed_line(line: u32) -> bool {
    plic::enable(line)
}

/// Returns 0, because no device sends messages.
pub(crate) fn take_messages() -> u32 {
    0
}

/// Handles the lines that were raised since the last call. `acknowledge_devices` reads each device's
/// interrupt status, and returns whether any device had interrupted.
pub(crate) fn answer_lines(acknowledge_devices: impl FnMut() -> bool) {
    RAISED_LINES.answer(acknowledge_devices, plic::complete);
}

/// Halts until a device interrupts or the timer ticks. Does not halt if an interrupt is pending, or if
/// there is `other_work`.
pub(crate) fn wait_for_interrupt(other_work: impl FnOnce() -> bool) {
    halt_unless(|| other_work() || RAISED_LINES.is_any());
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

/// Ends the halt of all other CPUs (SBI, chapter "IPI Extension"). Ends the run if the SBI implementation
/// cannot do so, because a halted CPU has no timer that would end its halt.
pub(crate) fn interrupt_others() {
    // SAFETY: a barrier. The other CPUs must see earlier writes when they are interrupted, by memory or by a
    // register.
    unsafe { asm!("fence w, ow", options(nostack, preserves_flags)) }
    if let Some(error) = sbi_rt::send_ipi(HartMask::all()).err() {
        (handlers::get().give_up)(&format_args!("the SBI interrupts no harts: {error:?}"))
    }
}

/// Ends the interrupt of [`interrupt_others`].
pub(super) fn answer_software_interrupt() {
    // SAFETY: the interrupt has only ended a halt.
    unsafe { asm!("csrc sip, {}", in(reg) SOFTWARE, options(nostack, preserves_flags)) }
}
