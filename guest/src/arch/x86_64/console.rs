//! Writes to the console, which is the first serial port, a 16550.

use core::arch::asm;
use core::fmt;
use hotmem_guest::device_tree::EarlyDevices;
use x86_64::instructions::port::Port;

/// The port's first register.
pub(super) const BASE: u16 = 0x3f8;
/// The register that enables interrupts.
pub(super) const INTERRUPTS: u16 = BASE + 1;
pub(super) const FIFO_CONTROL: u16 = BASE + 2;
pub(super) const LINE_CONTROL: u16 = BASE + 3;
pub(super) const LINE_STATUS: u16 = BASE + 5;
/// A value of the line control: 8 data bits, no parity, 1 stop bit.
pub(super) const EIGHT_BITS: u8 = 3;
/// A value of the FIFO control: both FIFOs are cleared and enabled.
pub(super) const FIFOS_ON: u8 = 7;
/// A bit of the line status.
pub(super) const TRANSMITTER_EMPTY: u8 = 1 << 5;
const FIFO_BYTES: usize = 16;

/// A writer to the port. It sends whole lines, which needs fewer VM exits than single bytes.
pub(crate) struct Console {
    line: [u8; 256],
    len: usize,
}

impl Console {
    /// Sets the port up: 8 data bits, no parity, 1 stop bit, FIFOs on, no interrupts. Does not set
    /// the speed, because virtual ports have none. A PC needs no description of its console.
    pub(crate) fn open(_: &EarlyDevices) -> Self {
        // SAFETY: on every PC, only the first serial port has registers at these port addresses. On
        // a machine without a serial port, a write there has no effect.
        unsafe {
            Port::new(INTERRUPTS).write(0u8);
            Port::new(LINE_CONTROL).write(EIGHT_BITS);
            Port::new(FIFO_CONTROL).write(FIFOS_ON);
        }
        Self::new()
    }

    /// Makes another writer to the port that [`Console::open`] has set up.
    pub(crate) fn new() -> Self {
        Console { line: [0; 256], len: 0 }
    }

    fn flush(&mut self) {
        let mut status = Port::<u8>::new(LINE_STATUS);
        for chunk in self.line[..self.len].chunks(FIFO_BYTES) {
            // SAFETY: reading the line status only clears error flags.
            while unsafe { status.read() } & TRANSMITTER_EMPTY == 0 {
                core::hint::spin_loop();
            }
            // SAFETY: `rep outsb` reads exactly the bytes of `chunk`. The FIFO is empty, so all of
            // them fit.
            unsafe {
                asm!(
                    "rep outsb",
                    in("dx") BASE,
                    inout("rsi") chunk.as_ptr() => _,
                    inout("rcx") chunk.len() => _,
                    options(readonly, nostack, preserves_flags)
                );
            }
        }
        self.len = 0;
    }
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.line[self.len] = byte;
            self.len += 1;
            if byte == b'\n' || self.len == self.line.len() {
                self.flush();
            }
        }
        Ok(())
    }
}
