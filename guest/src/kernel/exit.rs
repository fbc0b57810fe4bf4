//! Ends the machine. No method works on every VMM, so several are tried in turn. The verdict has
//! been written to the serial port before.

use hotmem_guest::report::Verdict;
use x86_64::instructions::{hlt, interrupts, port::Port};

/// The port of QEMU's isa-debug-exit: QEMU ends with status 2 * code + 1.
pub(super) const DEBUG_EXIT: u16 = 0xf4;
const PASS: u32 = 0x10;
pub(super) const FAIL: u32 = 0x11;
/// The keyboard controller, and the command that pulses its reset line. Firecracker ends then.
pub(super) const KEYBOARD: u16 = 0x64;
pub(super) const RESET: u8 = 0xfe;
/// ACPI sleep control of Cloud Hypervisor and QEMU's microvm, and S5 with sleep enable.
pub(super) const ACPI_SLEEP: u16 = 0x600;
pub(super) const SOFT_OFF: u8 = 0x34;

/// Ends the machine.
pub(crate) fn exit(verdict: Verdict) -> ! {
    let code = match verdict {
        Verdict::Pass => PASS,
        Verdict::Fail => FAIL,
    };
    interrupts::disable();
    // SAFETY: nothing is left to do, so writes to these ports can do no harm, whatever they are.
    unsafe {
        Port::new(DEBUG_EXIT).write(code);
        Port::new(KEYBOARD).write(RESET);
        Port::new(ACPI_SLEEP).write(SOFT_OFF);
    }
    loop {
        hlt();
    }
}
