//! Prints to the serial port, a PL011.

use core::fmt::{self, Write};

/// The registers, in the identity map.
const DATA: *mut u32 = 0x900_0000 as *mut u32;
const FLAGS: *const u32 = 0x900_0018 as *const u32;
/// A flag: the transmit FIFO is full.
const IS_FULL: u32 = 1 << 5;

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the boot code has mapped the registers. Reading the flags has no effect.
            while unsafe { FLAGS.read_volatile() } & IS_FULL != 0 {
                core::hint::spin_loop();
            }
            // SAFETY: as above. The write only sends a byte.
            unsafe { DATA.write_volatile(byte.into()) };
        }
        Ok(())
    }
}

pub(crate) fn print_line(line: fmt::Arguments<'_>) {
    // `write_str` never fails.
    let _ = writeln!(Serial, "{line}");
}
