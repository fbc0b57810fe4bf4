//! The error type of devices on PCI.

use core::fmt;

/// The reason why a device that was found cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PciError {
    /// The device has no registers, or too few, of the kind with this number in `virtio_pci_cap`.
    Missing(u8),
    /// The BAR with this number is not a memory BAR, or has no address.
    Bar(u8),
    /// The kernel could not map the registers at these physical addresses.
    Unmapped(u64, u64),
}

impl fmt::Display for PciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PciError::Missing(kind) => write!(f, "the registers of kind {kind} are missing"),
            PciError::Bar(bar) => write!(f, "BAR {bar} has no address in memory"),
            PciError::Unmapped(start, end) => {
                write!(f, "the registers at {start:#x} to {end:#x} cannot be mapped")
            }
        }
    }
}

impl core::error::Error for PciError {}
