//! Defines accesses to registers of devices by fixed instructions, because a hypervisor cannot emulate
//! every form of an access that a compiler may choose.

/// Defines functions that read a register. The lines of assembler have two operands: the value, and the
/// register's address.
macro_rules! define_reads {
    ($($name:ident -> $value:ty: $($line:literal),+;)+) => { $(
        /// Reads a register.
        ///
        /// # Safety
        /// The register must be mapped, and reading it must have no effect that its owner does not expect.
        pub(crate) unsafe fn $name(register: usize) -> $value {
            let value: $value;
            // SAFETY: the caller's.
            unsafe {
                core::arch::asm!(
                    $($line),+,
                    out(reg) value,
                    in(reg) register,
                    options(nostack, preserves_flags)
                );
            }
            value
        }
    )+ };
}

/// Defines functions that write a register, after all earlier writes to memory. The lines of assembler
/// have two operands: the value, and the register's address.
macro_rules! define_writes {
    ($($name:ident($value:ty): $($line:literal),+;)+) => { $(
        /// Writes a register, after all earlier writes to memory.
        ///
        /// # Safety
        /// The register must be mapped, and the write must not make the device violate memory safety.
        pub(crate) unsafe fn $name(register: usize, value: $value) {
            // SAFETY: the caller's.
            unsafe {
                core::arch::asm!(
                    $($line),+,
                    in(reg) value,
                    in(reg) register,
                    options(nostack, preserves_flags)
                );
            }
        }
    )+ };
}

pub(in crate::arch) use {define_reads, define_writes};
