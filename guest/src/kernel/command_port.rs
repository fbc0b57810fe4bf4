//! Takes commands from the program that started the machine, by the second serial port of a PC, a
//! 16550.

use crate::arch::{IoPort, interrupts};
use hotmem_guest::command::{Command, CommandError, LineBuffer};

/// The port's first register, from which bytes are read.
const BASE: u16 = 0x2f8;
const IRQ: u32 = 3;
/// The offsets of registers.
const INTERRUPTS: u16 = 1;
const FIFO_CONTROL: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;
/// The bit of the line status that says that a byte can be read.
const DATA_READY: u8 = 1;
/// The line status of a port that does not exist.
const ABSENT: u8 = 0xff;

/// The port.
pub(crate) struct CommandPort {
    base: IoPort,
    line: LineBuffer,
    /// Whether bytes were read since the interrupt was acknowledged.
    has_read: bool,
    /// Whether the command to end the run was read.
    pub(crate) has_ended: bool,
}

impl CommandPort {
    /// Sets the port up. Returns `None` if the machine does not have it.
    pub(crate) fn open() -> Option<Self> {
        let (line, has_read, has_ended) = (LineBuffer::new(), false, false);
        let port = CommandPort { base: IoPort::new(BASE)?, line, has_read, has_ended };
        if port.read(LINE_STATUS) == ABSENT {
            return None;
        }
        // 8 data bits, no parity, 1 stop bit; both FIFOs on; interrupts if bytes arrive, which the last
        // register connects to the IRQ.
        let settings =
            [(LINE_CONTROL, 3), (FIFO_CONTROL, 7), (INTERRUPTS, 1), (MODEM_CONTROL, 0xb)];
        for (register, value) in settings {
            port.write(register, value);
        }
        // Without the IRQ, the kernel still reads the port at each timer tick.
        interrupts::enable_own_line(IRQ);
        Some(port)
    }

    /// Reads bytes up to the end of a line. Returns the command, if all of its line has arrived. Costs
    /// one read of a port if no byte has arrived.
    pub(crate) fn next(&mut self) -> Option<Result<Command, CommandError>> {
        while self.read(LINE_STATUS) & DATA_READY != 0 {
            self.has_read = true;
            let byte = self.read(0);
            if let Some(command) = self.line.push(byte) {
                return Some(command);
            }
        }
        None
    }

    /// Returns whether the port may have interrupted. The interrupt ends when all bytes are read.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        core::mem::take(&mut self.has_read) || self.read(LINE_STATUS) & DATA_READY != 0
    }

    fn read(&self, register: u16) -> u8 {
        // SAFETY: on a PC only the second serial port has these registers, and only this value uses it.
        // On a machine without the port, reading has no effect.
        self.port(register).map_or(ABSENT, |port| unsafe { port.read_u8() })
    }

    fn write(&self, register: u16, value: u8) {
        if let Some(port) = self.port(register) {
            // SAFETY: see `read`.
            unsafe { port.write_u8(value) }
        }
    }

    fn port(&self, register: u16) -> Option<IoPort> {
        self.base.checked_add(register)
    }
}
