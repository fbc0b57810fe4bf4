//! Writes lines to Xen's console, and ends the machine.

use super::hypercall::hypercall;
use core::fmt::{self, Write};

const CONSOLE_IO: u64 = 18;
const SCHED_OP: u64 = 29;
const SHUTDOWN: u64 = 2;
/// A reboot, at which QEMU ends with `-no-reboot`. After a halt of dom0 Xen would continue to run.
const REBOOT: u32 = 1;

/// Collects a line and writes it as a whole, because Xen writes lines of its own in between.
pub(crate) struct Console {
    line: [u8; 512],
    len: usize,
}

impl Console {
    pub(crate) const fn new() -> Console {
        Console { line: [0; 512], len: 0 }
    }

    fn send(&mut self) {
        let pointer = self.line.as_ptr().expose_provenance() as u64;
        // SAFETY: CONSOLEIO_write of this many bytes, which Xen reads. An error could not be
        // reported.
        let _ = unsafe { hypercall(CONSOLE_IO, [0, self.len as u64, pointer, 0, 0]) };
        self.len = 0;
    }
}

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if let Some(free) = self.line.get_mut(self.len) {
                *free = byte;
                self.len += 1;
            }
            if byte == b'\n' || self.len == self.line.len() {
                self.send();
            }
        }
        Ok(())
    }
}

/// Ends the machine.
pub(crate) fn shut_down() -> ! {
    loop {
        let reason = &raw const REBOOT_REASON;
        // SAFETY: SCHEDOP_shutdown reads the reason.
        let _ =
            unsafe { hypercall(SCHED_OP, [SHUTDOWN, reason.expose_provenance() as u64, 0, 0, 0]) };
    }
}

static REBOOT_REASON: u32 = REBOOT;
