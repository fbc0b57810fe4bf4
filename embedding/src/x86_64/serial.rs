//! Prints to the first serial port, a 16550 that the loader has set up.

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
                // SAFETY: reading the line status affects nothing in memory.
                unsafe { asm!("in al, dx", in("dx") LINE_STATUS, out("al") status) };
            }
            // SAFETY: writing to the serial port affects nothing in memory.
            unsafe { asm!("out dx, al", in("dx") PORT, in("al") byte) };
        }
        Ok(())
    }
}

pub(crate) fn print_line(line: fmt::Arguments<'_>) {
    // `write_str` never fails.
    let _ = writeln!(Serial, "{line}");
}
