//! Writes to the console, which is a virtual terminal of the hypervisor.

use super::firmware::hypercall;
use core::fmt;

const H_PUT_TERM_CHAR: u64 = 0x58;
/// The terminal of QEMU's first serial port.
const TERMINAL: u64 = 0x7100_0000;
/// The maximal number of bytes in one call.
const MAX_BYTES: usize = 16;
const H_BUSY: i64 = 1;

/// A writer to the console. Any code may make one, because there is one CPU without interrupts.
pub(super) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.as_bytes().chunks(MAX_BYTES) {
            let mut bytes = [0; MAX_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            let (words, _) = bytes.as_chunks();
            let [high, low] =
                [0, 1].map(|nth| words.get(nth).map_or(0, |&w| u64::from_be_bytes(w)));
            // SAFETY: H_PUT_TERM_CHAR takes the characters themselves and accesses no memory.
            while unsafe { hypercall(H_PUT_TERM_CHAR, [TERMINAL, part.len() as u64, high, low]) }
                == H_BUSY
            {}
        }
        Ok(())
    }
}
