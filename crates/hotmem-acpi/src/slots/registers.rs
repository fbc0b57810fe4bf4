//! Describes the registers of memory slots, which show one slot at a time.
//!
//! The block has 24 bytes (QEMU, docs/specs/acpi_mem_hotplug.rst):
//!
//! | offset | read | write |
//! |---|---|---|
//! | 0x00 | the address, 8 bytes | 4 bytes: select a slot |
//! | 0x04 | | 4 bytes: the event of an `_OST` |
//! | 0x08 | the size, 8 bytes | 4 bytes: the status of an `_OST` |
//! | 0x10 | the proximity domain, 4 bytes | |
//! | 0x14 | bit 0: memory is present; bit 1: it was inserted; bit 2: the host asks for it | bit 1 or 2: acknowledge; bit 3: eject |
//! | 0x15 | all ones, if the slot exists | |

/// Access to the block of registers. `offset` is below 24.
///
/// A register is accessed in the given width, because some devices ignore others.
pub trait SlotRegisters {
    /// Reads 4 bytes.
    fn read_u32(&mut self, offset: u16) -> u32;
    /// Reads one byte.
    fn read_u8(&mut self, offset: u16) -> u8;
    /// Writes 4 bytes.
    fn write_u32(&mut self, offset: u16, value: u32);
    /// Writes one byte.
    fn write_u8(&mut self, offset: u16, value: u8);
}

/// In what the devices of this kind differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    /// The width of accesses to the status.
    pub status_width: StatusWidth,
    /// Whether there is a register for the proximity domain. Without it, all memory is in domain 0.
    pub has_proximity: bool,
    /// Whether the host takes answers (`_OST`).
    pub has_ost: bool,
}

/// The width of accesses to the status of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusWidth {
    /// One byte.
    Byte,
    /// Four bytes, of which the first counts.
    FourBytes,
}

impl Model {
    /// QEMU on PCs, at the region `HPMR` of the DSDT, and on Arm's `virt`, at 0x0907_0000. The integer
    /// `MDNR` of the DSDT is the number of slots.
    pub const QEMU: Model =
        Model { status_width: StatusWidth::Byte, has_proximity: true, has_ost: true };
    /// Cloud Hypervisor, at the region `MHPR` of the DSDT, with 8 slots.
    pub const CLOUD_HYPERVISOR: Model =
        Model { status_width: StatusWidth::FourBytes, has_proximity: false, has_ost: false };
}

/// The offsets of registers.
pub(super) mod register {
    pub(in crate::slots) const ADDRESS: u16 = 0x0;
    pub(in crate::slots) const SIZE: u16 = 0x8;
    pub(in crate::slots) const PROXIMITY: u16 = 0x10;
    pub(in crate::slots) const STATUS: u16 = 0x14;
    pub(in crate::slots) const RESERVED: u16 = 0x15;
    // Registers to write.
    pub(in crate::slots) const SELECT: u16 = 0x0;
    pub(in crate::slots) const OST_EVENT: u16 = 0x4;
    pub(in crate::slots) const OST_STATUS: u16 = 0x8;
}

/// The bits of the status.
pub(super) mod status {
    pub(in crate::slots) const PRESENT: u8 = 1 << 0;
    pub(in crate::slots) const INSERTED: u8 = 1 << 1;
    pub(in crate::slots) const REMOVAL_REQUESTED: u8 = 1 << 2;
    pub(in crate::slots) const EJECT: u8 = 1 << 3;
}
