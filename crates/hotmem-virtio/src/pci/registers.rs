//! Defines the interface by which the driver accesses a device's registers.

/// The registers that one BAR of a device maps.
///
/// Each access lies within the BAR and is aligned to the width of the access. The driver takes
/// offsets from the device's capabilities, and checks that they lie within the mapped bytes.
pub trait Registers {
    /// Reads the register at `offset` by one access of this width.
    fn read(&self, offset: usize, width: Width) -> u32;

    /// Writes the lower bytes of `value` to the register at `offset` by one access of this width.
    fn write(&mut self, offset: usize, width: Width, value: u32);
}

/// The width of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 1 byte.
    OneByte,
    /// 2 bytes.
    TwoBytes,
    /// 4 bytes.
    FourBytes,
}

impl Width {
    /// Returns the width in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Width::OneByte => 1,
            Width::TwoBytes => 2,
            Width::FourBytes => 4,
        }
    }
}
