//! Access to the registers of bridges and devices, and to extended configuration space.

use crate::arch::mmio;
use core::ptr::NonNull;
use hotmem_cxl::{Config, Registers};
use hotmem_guest::to_usize;

/// A block of mapped registers. Clones name the same registers.
#[derive(Clone)]
pub(super) struct Block {
    base: usize,
    size: u32,
}

/// The 4096 bytes of a function's configuration space.
pub(super) struct ExtendedConfig {
    base: usize,
}

impl Block {
    /// # Safety
    /// The registers must be mapped from `start` on, for `size` bytes, and stay mapped. They belong to a
    /// CXL component, and only this module's callers write to them.
    pub(super) unsafe fn new(start: NonNull<u8>, size: u32) -> Self {
        Block { base: start.as_ptr().expose_provenance(), size }
    }

    fn at(&self, offset: u32, width: u32) -> usize {
        let is_within = offset.checked_add(width).is_some_and(|end| end <= self.size);
        assert!(is_within && offset.is_multiple_of(width), "a register at {offset:#x}");
        self.base + to_usize(offset.into())
    }
}

// Reading registers of CXL components has no effect. What is written moves addresses of memory that
// nothing uses, or is a command of the specification.
impl Registers for Block {
    fn size(&self) -> u32 {
        self.size
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        // SAFETY: `at` has checked that the register is mapped, here and below.
        unsafe { mmio::read_u32(self.at(offset, 4)) }
    }

    fn write_u32(&mut self, offset: u32, value: u32) {
        // SAFETY: see above.
        unsafe { mmio::write_u32(self.at(offset, 4), value) }
    }

    fn read_u64(&mut self, offset: u32) -> u64 {
        // SAFETY: see above.
        unsafe { mmio::read_u64(self.at(offset, 8)) }
    }

    fn write_u64(&mut self, offset: u32, value: u64) {
        // SAFETY: see above.
        unsafe { mmio::write_u64(self.at(offset, 8), value) }
    }
}

impl ExtendedConfig {
    /// # Safety
    /// A function's configuration space must be mapped from `base` on, and stay mapped.
    pub(super) unsafe fn new(base: usize) -> Self {
        ExtendedConfig { base }
    }

    fn at(&self, offset: u16) -> usize {
        assert!(offset < 4096 && offset.is_multiple_of(4), "configuration at {offset:#x}");
        self.base + usize::from(offset)
    }
}

impl Config for ExtendedConfig {
    fn read_u32(&mut self, offset: u16) -> u32 {
        // SAFETY: `at` has checked that the register is mapped. Reading it has no effect.
        unsafe { mmio::read_u32(self.at(offset)) }
    }

    fn write_u32(&mut self, offset: u16, value: u32) {
        // SAFETY: as above. Only the control of CXL.mem is written.
        unsafe { mmio::write_u32(self.at(offset), value) }
    }
}
