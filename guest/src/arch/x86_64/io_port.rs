//! Reads and writes I/O ports.

use x86_64::instructions::port::Port;

/// An I/O port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IoPort(u16);

impl IoPort {
    /// Returns the port with this number, or `None` if the processor has no ports.
    #[expect(clippy::unnecessary_wraps, reason = "other architectures have no ports")]
    pub(crate) const fn new(number: u16) -> Option<Self> {
        Some(IoPort(number))
    }

    /// Returns the port `offset` ports above this one, or `None` if there is no such number.
    pub(crate) fn checked_add(self, offset: u16) -> Option<Self> {
        self.0.checked_add(offset).map(IoPort)
    }

    /// Reads a register of 8 bits.
    ///
    /// # Safety
    /// The read must have no effect that another user of the device does not expect.
    pub(crate) unsafe fn read_u8(self) -> u8 {
        // SAFETY: the caller's.
        unsafe { Port::new(self.0).read() }
    }

    /// Reads a register of 32 bits.
    ///
    /// # Safety
    /// As for [`read_u8`](Self::read_u8).
    pub(crate) unsafe fn read_u32(self) -> u32 {
        // SAFETY: the caller's.
        unsafe { Port::new(self.0).read() }
    }

    /// Writes a register of 8 bits.
    ///
    /// # Safety
    /// The write must not make a device violate memory safety.
    pub(crate) unsafe fn write_u8(self, value: u8) {
        // SAFETY: the caller's.
        unsafe { Port::new(self.0).write(value) }
    }

    /// Writes a register of 16 bits.
    ///
    /// # Safety
    /// As for [`write_u8`](Self::write_u8).
    pub(crate) unsafe fn write_u16(self, value: u16) {
        // SAFETY: the caller's.
        unsafe { Port::new(self.0).write(value) }
    }

    /// Writes a register of 32 bits.
    ///
    /// # Safety
    /// As for [`write_u8`](Self::write_u8).
    pub(crate) unsafe fn write_u32(self, value: u32) {
        // SAFETY: the caller's.
        unsafe { Port::new(self.0).write(value) }
    }
}
