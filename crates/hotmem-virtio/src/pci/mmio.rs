//! Registers behind a pointer.

#![allow(unsafe_code)]

use super::registers::{Registers, Width};
use core::ptr::NonNull;

/// Registers that are mapped, for kernels whose code may use pointers to them.
#[derive(Debug)]
pub struct Mmio {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: by the contract of `new` they may be used from any thread.
unsafe impl Send for Mmio {}

impl Mmio {
    /// Takes ownership of mapped registers.
    ///
    /// # Safety
    /// `len` bytes from `start` on are mapped registers of a device, not cached, for as long as the
    /// value exists. Nothing else uses them. `start` is a multiple of 4.
    #[must_use]
    pub const unsafe fn new(start: NonNull<u8>, len: usize) -> Mmio {
        Mmio { start, len }
    }

    /// # Panics
    /// Panics if the access does not lie inside the registers, or is not aligned.
    fn at(&self, offset: usize, width: Width) -> *mut u8 {
        let end = offset.checked_add(width.bytes());
        assert!(end.is_some_and(|end| end <= self.len), "an access at {offset} of {}", self.len);
        assert!(offset.is_multiple_of(width.bytes()), "{offset} is not aligned");
        // SAFETY: just checked.
        unsafe { self.start.add(offset) }.as_ptr()
    }
}

impl Registers for Mmio {
    fn read(&self, offset: usize, width: Width) -> u32 {
        let at = self.at(offset, width);
        // SAFETY: `at` has checked it, and registers are read as volatile.
        unsafe {
            match width {
                Width::One => at.read_volatile().into(),
                Width::Two => u16::from_le(at.cast::<u16>().read_volatile()).into(),
                Width::Four => u32::from_le(at.cast::<u32>().read_volatile()),
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the lower bytes are wanted")]
    fn write(&mut self, offset: usize, width: Width, value: u32) {
        let at = self.at(offset, width);
        // SAFETY: as in `read`.
        unsafe {
            match width {
                Width::One => at.write_volatile(value as u8),
                Width::Two => at.cast::<u16>().write_volatile((value as u16).to_le()),
                Width::Four => at.cast::<u32>().write_volatile(value.to_le()),
            }
        }
    }
}
