//! Accesses mapped registers by a pointer.

#![allow(unsafe_code)]

use super::registers::{Registers, Width};
use core::ptr::NonNull;

/// Mapped registers, for kernels whose code may use pointers to registers.
#[derive(Debug)]
pub struct Mmio {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: by the contract of `new`, an `Mmio` owns its registers, and registers may be used from
// any thread.
unsafe impl Send for Mmio {}

impl Mmio {
    /// Takes ownership of mapped registers.
    ///
    /// # Safety
    /// `len` bytes from `start` on are registers of a device that are mapped uncached for as long
    /// as the value exists. Nothing else uses the registers. `start` is a multiple of 4.
    #[must_use]
    pub const unsafe fn new(start: NonNull<u8>, len: usize) -> Mmio {
        Mmio { start, len }
    }

    /// Returns a pointer to the register at `offset`.
    ///
    /// # Panics
    /// Panics if the access does not lie inside the registers, or is not aligned.
    fn pointer(&self, offset: usize, width: Width) -> *mut u8 {
        let end = offset.checked_add(width.bytes());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "the access at {offset} exceeds the {} bytes of registers",
            self.len
        );
        assert!(
            offset.is_multiple_of(width.bytes()),
            "offset {offset} is not aligned to the access"
        );
        // SAFETY: the assertion ensures that `offset` is less than `self.len`.
        unsafe { self.start.add(offset) }.as_ptr()
    }
}

impl Registers for Mmio {
    fn read(&self, offset: usize, width: Width) -> u32 {
        let register = self.pointer(offset, width);
        // SAFETY: `pointer` has checked that the access lies in the registers and is aligned, and the
        // read is volatile.
        unsafe {
            match width {
                Width::OneByte => register.read_volatile().into(),
                Width::TwoBytes => u16::from_le(register.cast::<u16>().read_volatile()).into(),
                Width::FourBytes => u32::from_le(register.cast::<u32>().read_volatile()),
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "only the lower bytes are written")]
    fn write(&mut self, offset: usize, width: Width, value: u32) {
        let register = self.pointer(offset, width);
        // SAFETY: `pointer` has checked that the access lies in the registers and is aligned, and the
        // write is volatile.
        unsafe {
            match width {
                Width::OneByte => register.write_volatile(value as u8),
                Width::TwoBytes => register.cast::<u16>().write_volatile((value as u16).to_le()),
                Width::FourBytes => register.cast::<u32>().write_volatile(value.to_le()),
            }
        }
    }
}
