//! Writes to the console, a 16550.

use super::{mmio, paging};
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use hotmem_guest::device_tree::{EarlyDevices, Ns16550};

/// The numbers of the data register and of the line status.
const DATA: usize = 0;
const LINE_STATUS: usize = 5;
/// A bit of the line status.
const TRANSMITTER_EMPTY: u32 = 1 << 5;
/// The size of the accesses that not every 16550 understands.
const WORD: u32 = 4;

/// The address of the registers; 0 if there is no console. Relaxed: the mapping is published before.
static REGISTERS: AtomicUsize = AtomicUsize::new(0);
/// The distance of the registers, as the exponent of a power of two, and the size of an access.
static SHIFT: AtomicU32 = AtomicU32::new(0);
static WIDTH: AtomicU32 = AtomicU32::new(1);

/// A writer to the console. Without a console, it discards what is written.
pub(crate) struct Console(());

impl Console {
    /// Opens the console.
    pub(crate) fn open(devices: &EarlyDevices) -> Self {
        if let Some(Ns16550 { address, shift, width }) = devices.ns16550 {
            SHIFT.store(shift, Relaxed);
            WIDTH.store(width, Relaxed);
            REGISTERS.store(paging::map_console(address), Relaxed);
        }
        Self::new()
    }

    /// Makes another writer to the console that [`Console::open`] has opened.
    pub(crate) fn new() -> Self {
        Console(())
    }
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (registers, shift) = (REGISTERS.load(Relaxed), SHIFT.load(Relaxed));
        if registers == 0 {
            return Ok(());
        }
        let has_words = WIDTH.load(Relaxed) == WORD;
        let (data, status) = (registers + (DATA << shift), registers + (LINE_STATUS << shift));
        for byte in text.bytes() {
            // SAFETY: the registers are mapped. Reading the status only clears error flags, and the write
            // only sends a byte.
            unsafe {
                if has_words {
                    while mmio::read_u32(status) & TRANSMITTER_EMPTY == 0 {
                        core::hint::spin_loop();
                    }
                    mmio::write_u32(data, byte.into());
                } else {
                    while u32::from(mmio::read_u8(status)) & TRANSMITTER_EMPTY == 0 {
                        core::hint::spin_loop();
                    }
                    mmio::write_u8(data, byte);
                }
            }
        }
        Ok(())
    }
}
