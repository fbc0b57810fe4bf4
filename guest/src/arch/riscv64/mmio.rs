//! Accesses registers of devices. The fences order these accesses with those to memory, which the
//! processor may reorder: it keeps only accesses of the same kind to the same device in order
//! (unprivileged specification, 2.7).

use core::arch::asm;

/// Reads a register of 8 bits.
///
/// # Safety
/// As for [`read_u32`].
pub(super) unsafe fn read_u8(register: usize) -> u8 {
    let value: u8;
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "lbu {}, ({})",
            "fence i, ir",
            out(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
    value
}

/// Reads a register of 32 bits, before all later reads of memory.
///
/// # Safety
/// The register must be mapped, and reading it must have no effect that its owner does not expect.
pub(crate) unsafe fn read_u32(register: usize) -> u32 {
    let value: u32;
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "lw {}, ({})",
            "fence i, ir",
            out(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
    value
}

/// Reads a register of 64 bits, before all later reads of memory.
///
/// # Safety
/// As for [`read_u32`].
pub(crate) unsafe fn read_u64(register: usize) -> u64 {
    let value;
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "ld {}, ({})",
            "fence i, ir",
            out(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
    value
}

/// Writes a register of 8 bits, after all earlier writes to memory.
///
/// # Safety
/// As for [`write_u16`].
pub(super) unsafe fn write_u8(register: usize, value: u8) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "fence w, o",
            "sb {}, ({})",
            in(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
}

/// Writes a register of 16 bits, after all earlier writes to memory.
///
/// # Safety
/// The register must be mapped, and the write must not make the device violate memory safety.
pub(crate) unsafe fn write_u16(register: usize, value: u16) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "fence w, o",
            "sh {}, ({})",
            in(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
}

/// Writes a register of 32 bits, after all earlier writes to memory.
///
/// # Safety
/// As for [`write_u16`].
pub(crate) unsafe fn write_u32(register: usize, value: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "fence w, o",
            "sw {}, ({})",
            in(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
}

/// Writes a register of 64 bits, after all earlier writes to memory.
///
/// # Safety
/// As for [`write_u16`].
pub(crate) unsafe fn write_u64(register: usize, value: u64) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "fence w, o",
            "sd {}, ({})",
            in(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
}
