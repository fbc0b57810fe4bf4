//! Defines the error type of devices on PCI.

use core::fmt;

/// The reason why a device that was found cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PciError {
    /// The device has no registers of this kind, or too few. The number is the one in
    /// `virtio_pci_cap`.
    Missing(u8),
    /// The device has registers in the BAR with this number, but the BAR is not a memory BAR, or
    /// has no address.
    Bar(u8),
    /// The kernel could not map the registers from the first to the second physical address.
    Unmapped(u64, u64),
}

impl fmt::Display for PciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PciError::Missing(kind) => {
                write!(f, "the device has no registers of kind {kind}, or too few")
            }
            PciError::Bar(bar) => write!(f, "BAR {bar} has no address in memory"),
            PciError::Unmapped(start, end) => {
                write!(f, "the registers at {start:#x} to {end:#x} cannot be mapped")
            }
        }
    }
}

impl core::error::Error for PciError {}
