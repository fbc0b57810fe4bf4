//! The first serial port, a 16550, as the loader left it.

use core::arch::asm;
use core::fmt::{self, Write};

const PORT: u16 = 0x3f8;
const LINE_STATUS: u16 = PORT + 5;
const TRANSMITTER_EMPTY: u8 = 1 << 5;

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let mut status = 0_u8;
            while status & TRANSMITTER_EMPTY == 0 {
                // SAFETY: reading the line status has no effect that matters.
                unsafe { asm!("in al, dx", in("dx") LINE_STATUS, out("al") status) };
            }
            // SAFETY: the port sends the byte.
            unsafe { asm!("out dx, al", in("dx") PORT, in("al") byte) };
        }
        Ok(())
    }
}

pub(crate) fn print_line(line: fmt::Arguments<'_>) {
    // The port takes whatever it is given.
    let _ = writeln!(Serial, "{line}");
}
