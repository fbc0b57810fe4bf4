//! Accesses mapped registers by a pointer.
//!
//! On aarch64, the compiler may turn a volatile access into an instruction that a hypervisor cannot
//! decode when the access traps, such as one with a post-index. safe-mmio accesses registers by
//! instructions that it can decode.

#![allow(unsafe_code)]

use super::registers::{Registers, Width};
use core::ptr::NonNull;
use safe_mmio::UniqueMmioPointer;
use safe_mmio::fields::ReadWrite;

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

    /// Returns a second value for the same registers.
    ///
    /// # Safety
    /// The caller uses the second value only to read registers whose value does not change and whose
    /// reads have no effect.
    pub(super) unsafe fn alias(&self) -> Mmio {
        Mmio { ..*self }
    }

    /// Returns a pointer to the register at `offset`.
    ///
    /// # Panics
    /// Panics if the access does not lie inside the registers, or is not aligned.
    fn pointer(&self, offset: usize, width: Width) -> NonNull<u8> {
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
        unsafe { self.start.add(offset) }
    }
}

impl Registers for Mmio {
    fn read(&self, offset: usize, width: Width) -> u32 {
        let register = self.pointer(offset, width);
        // SAFETY: `pointer` has checked that the access lies in the registers and is aligned. By the
        // contract of `new`, nothing else uses the registers.
        unsafe {
            match width {
                Width::OneByte => {
                    UniqueMmioPointer::<ReadWrite<u8>>::new(register.cast()).read().into()
                }
                Width::TwoBytes => {
                    let mut register = UniqueMmioPointer::<ReadWrite<u16>>::new(register.cast());
                    u16::from_le(register.read()).into()
                }
                Width::FourBytes => {
                    let mut register = UniqueMmioPointer::<ReadWrite<u32>>::new(register.cast());
                    u32::from_le(register.read())
                }
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "only the lower bytes are written")]
    fn write(&mut self, offset: usize, width: Width, value: u32) {
        let register = self.pointer(offset, width);
        // SAFETY: `pointer` has checked that the access lies in the registers and is aligned. By the
        // contract of `new`, nothing else uses the registers.
        unsafe {
            match width {
                Width::OneByte => {
                    UniqueMmioPointer::<ReadWrite<u8>>::new(register.cast()).write(value as u8);
                }
                Width::TwoBytes => {
                    let mut register = UniqueMmioPointer::<ReadWrite<u16>>::new(register.cast());
                    register.write((value as u16).to_le());
                }
                Width::FourBytes => {
                    let mut register = UniqueMmioPointer::<ReadWrite<u32>>::new(register.cast());
                    register.write(value.to_le());
                }
            }
        }
    }
}
