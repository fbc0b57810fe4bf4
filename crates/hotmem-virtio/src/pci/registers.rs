//! How registers of a device are accessed.

/// The registers that one BAR of a device maps.
///
/// An access lies within the BAR and is aligned to its width. The driver gives offsets from what
/// the device says of itself, after a check against what was mapped.
pub trait Registers {
    /// Reads by one access of this width.
    fn read(&self, offset: usize, width: Width) -> u32;

    /// Writes the lower bytes of `value` by one access of this width.
    fn write(&mut self, offset: usize, width: Width, value: u32);
}

/// The width of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 1 byte.
    One,
    /// 2 bytes.
    Two,
    /// 4 bytes.
    Four,
}

impl Width {
    /// The width in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Width::One => 1,
            Width::Two => 2,
            Width::Four => 4,
        }
    }
}
