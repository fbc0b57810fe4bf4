//! Writes to the console, a PL011.

use super::{mmio, paging, power};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use hotmem_guest::device_tree::EarlyDevices;

/// The offsets of the data register and of the flags.
const DATA: usize = 0;
const FLAGS: usize = 0x18;
/// A flag: the transmit FIFO is full.
const IS_FULL: u32 = 1 << 5;

/// The address of the registers; 0 if there is no console. Relaxed: the mapping is published before.
static REGISTERS: AtomicUsize = AtomicUsize::new(0);

/// A writer to the console. Without a console, it discards what is written.
pub(crate) struct Console(());

impl Console {
    /// Opens the console. Also records how the machine is ended, which is the end of every report.
    pub(crate) fn open(devices: &EarlyDevices) -> Self {
        if let Some(pl011) = devices.pl011 {
            REGISTERS.store(paging::map_console(pl011), Relaxed);
        }
        power::set_calls(devices.power_calls);
        Self::new()
    }

    /// Makes another writer to the console that [`Console::open`] has opened.
    pub(crate) fn new() -> Self {
        Console(())
    }
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let registers = REGISTERS.load(Relaxed);
        if registers == 0 {
            return Ok(());
        }
        for byte in text.bytes() {
            // SAFETY: the registers are mapped. Reading the flags has no effect, and the write only
            // sends a byte.
            unsafe {
                while mmio::read_u32(registers + FLAGS) & IS_FULL != 0 {
                    core::hint::spin_loop();
                }
                mmio::write_u32(registers + DATA, byte.into());
            }
        }
        Ok(())
    }
}
