//! Accesses registers of devices. The processor keeps all accesses to uncached memory in order, and a
//! hypervisor decodes every form of them.

/// Reads a register of 8 bits.
///
/// # Safety
/// The register must be mapped, and reading it must have no effect that its owner does not expect.
pub(crate) unsafe fn read_u8(register: usize) -> u8 {
    // SAFETY: the caller's.
    unsafe { core::ptr::with_exposed_provenance::<u8>(register).read_volatile() }
}

/// Reads a register of 32 bits.
///
/// # Safety
/// As for [`read_u8`].
pub(crate) unsafe fn read_u32(register: usize) -> u32 {
    // SAFETY: the caller's.
    unsafe { core::ptr::with_exposed_provenance::<u32>(register).read_volatile() }
}

/// Reads a register of 64 bits.
///
/// # Safety
/// As for [`read_u8`].
pub(crate) unsafe fn read_u64(register: usize) -> u64 {
    // SAFETY: the caller's.
    unsafe { core::ptr::with_exposed_provenance::<u64>(register).read_volatile() }
}

/// Writes a register of 8 bits, after all earlier writes to memory.
///
/// # Safety
/// The register must be mapped, and the write must not make the device violate memory safety.
pub(crate) unsafe fn write_u8(register: usize, value: u8) {
    // SAFETY: the caller's.
    unsafe { core::ptr::with_exposed_provenance_mut::<u8>(register).write_volatile(value) }
}

/// Writes a register of 16 bits, after all earlier writes to memory.
///
/// # Safety
/// As for [`write_u8`].
pub(crate) unsafe fn write_u16(register: usize, value: u16) {
    // SAFETY: the caller's.
    unsafe { core::ptr::with_exposed_provenance_mut::<u16>(register).write_volatile(value) }
}

/// Writes a register of 32 bits, after all earlier writes to memory.
///
/// # Safety
/// As for [`write_u8`].
pub(crate) unsafe fn write_u32(register: usize, value: u32) {
    // SAFETY: the caller's.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(register).write_volatile(value) }
}

/// Writes a register of 64 bits, after all earlier writes to memory.
///
/// # Safety
/// As for [`write_u8`].
pub(crate) unsafe fn write_u64(register: usize, value: u64) {
    // SAFETY: the caller's.
    unsafe { core::ptr::with_exposed_provenance_mut::<u64>(register).write_volatile(value) }
}
