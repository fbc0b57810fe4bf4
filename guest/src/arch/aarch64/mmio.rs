//! Accesses registers of devices by fixed instructions, because a hypervisor cannot emulate every form
//! of an access that a compiler may choose.

use core::arch::asm;

/// Reads a register of 32 bits.
///
/// # Safety
/// The register must be mapped, and reading it must have no effect that its owner does not expect.
pub(crate) unsafe fn read_u32(register: usize) -> u32 {
    let value;
    // SAFETY: the caller's.
    unsafe {
        asm!("ldr {:w}, [{}]", out(reg) value, in(reg) register, options(nostack, preserves_flags))
    }
    value
}

/// Reads a register of 64 bits.
///
/// # Safety
/// As for [`read_u32`].
pub(crate) unsafe fn read_u64(register: usize) -> u64 {
    let value;
    // SAFETY: the caller's.
    unsafe {
        asm!("ldr {}, [{}]", out(reg) value, in(reg) register, options(nostack, preserves_flags))
    }
    value
}

/// Writes a register of 16 bits, after all earlier writes to memory.
///
/// # Safety
/// The register must be mapped, and the write must not make the device violate memory safety.
pub(crate) unsafe fn write_u16(register: usize, value: u16) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "dsb sy",
            "strh {:w}, [{}]",
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
            "dsb sy",
            "str {:w}, [{}]",
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
            "dsb sy",
            "str {}, [{}]",
            in(reg) value,
            in(reg) register,
            options(nostack, preserves_flags)
        );
    }
}
