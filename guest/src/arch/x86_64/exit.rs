//! Ends the machine. No single method works on every VMM, so several are tried in turn. The reset by
//! the keyboard controller is the last, because a machine that can also be switched off would start
//! again after it. The caller has written the verdict to the serial port.

use hotmem_guest::report::Verdict;
use x86_64::instructions::{hlt, interrupts, port::Port};

/// The port of QEMU's isa-debug-exit. When a code is written to it, QEMU ends with status
/// 2 * code + 1.
pub(super) const DEBUG_EXIT: u16 = 0xf4;
const PASS: u32 = 0x10;
pub(super) const FAIL: u32 = 0x11;
/// The port of the keyboard controller. Firecracker ends when [`RESET`] is written to it.
pub(super) const KEYBOARD: u16 = 0x64;
/// The keyboard controller's command that pulses the reset line.
pub(super) const RESET: u8 = 0xfe;
/// The port of ACPI's sleep control register on Cloud Hypervisor and QEMU's microvm.
pub(super) const ACPI_SLEEP: u16 = 0x600;
/// A value of that register: sleep state S5 and sleep enable.
pub(super) const SOFT_OFF: u8 = 0x34;

/// Ends the machine.
pub(crate) fn exit(verdict: Verdict) -> ! {
    let code = match verdict {
        Verdict::Pass => PASS,
        Verdict::Fail => FAIL,
    };
    interrupts::disable();
    // SAFETY: the run has ended, so a write to one of these ports does no harm, even if the port
    // belongs to another device on this machine.
    unsafe {
        Port::new(DEBUG_EXIT).write(code);
        Port::new(ACPI_SLEEP).write(SOFT_OFF);
        Port::new(KEYBOARD).write(RESET);
    }
    loop {
        hlt();
    }
}
