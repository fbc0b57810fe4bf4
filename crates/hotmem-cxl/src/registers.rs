//! Defines how the crate reaches registers, which the kernel maps.

/// Access to a block of memory-mapped registers.
///
/// Each access has the given width, because devices ignore others. `offset` is a multiple of the width,
/// and no access ends beyond [`size`](Self::size), whatever the registers say.
pub trait Registers {
    /// Returns the size of the block in bytes.
    fn size(&self) -> u32;
    /// Reads 4 bytes.
    fn read_u32(&mut self, offset: u32) -> u32;
    /// Writes 4 bytes.
    fn write_u32(&mut self, offset: u32, value: u32);
    /// Reads 8 bytes.
    fn read_u64(&mut self, offset: u32) -> u64;
    /// Writes 8 bytes.
    fn write_u64(&mut self, offset: u32, value: u64);
}

/// Access to the 4096 bytes of a function's configuration space, as the memory-mapped space (ECAM) has
/// it. `offset` is a multiple of 4 below 4096.
pub trait Config {
    /// Reads 4 bytes.
    fn read_u32(&mut self, offset: u16) -> u32;
    /// Writes 4 bytes.
    fn write_u32(&mut self, offset: u16, value: u32);
}

/// What a register reads as when its device has been removed. No register of 4 bytes that this crate
/// reads has all bits set otherwise.
pub(crate) const GONE: u32 = u32::MAX;
