//! What can be wrong with a device's configuration.

use core::fmt;
use hotmem::geometry::PHYS_ADDR_BITS;

/// A configuration that cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field that is wrong.
    pub field: ConfigField,
    /// What the device reports in it.
    pub value: u64,
    /// What is wrong with that.
    pub fault: ConfigFault,
}

/// A field of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigField {
    /// `block_size`
    BlockSize,
    /// `node_id`
    NodeId,
    /// `addr`
    Addr,
    /// `region_size`
    RegionSize,
    /// `usable_region_size`
    UsableRegionSize,
    /// `plugged_size`
    PluggedSize,
    /// `requested_size`
    RequestedSize,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFault {
    /// It must not be zero.
    Zero,
    /// It must be a power of two.
    NotPowerOfTwo,
    /// It is less than a frame (4 KiB).
    BelowFrameSize,
    /// It is not a multiple of the block size.
    Unaligned,
    /// The region would end beyond what a physical address can say.
    BeyondAddressSpace,
    /// It is more than the region holds.
    BeyondRegion,
    /// The region holds no single unit (2 MiB) that could be plugged.
    NoWholeUnit,
    /// It must never change, and did.
    Changed {
        /// What it was.
        was: u64,
    },
}

impl fmt::Display for ConfigField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigField::BlockSize => "block_size",
            ConfigField::NodeId => "node_id",
            ConfigField::Addr => "addr",
            ConfigField::RegionSize => "region_size",
            ConfigField::UsableRegionSize => "usable_region_size",
            ConfigField::PluggedSize => "plugged_size",
            ConfigField::RequestedSize => "requested_size",
        })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError { field, value, fault } = *self;
        write!(f, "{field} {value:#x} ")?;
        match fault {
            ConfigFault::Zero => write!(f, "must not be zero"),
            ConfigFault::NotPowerOfTwo => write!(f, "is not a power of two"),
            ConfigFault::BelowFrameSize => write!(f, "is less than a frame"),
            ConfigFault::Unaligned => write!(f, "is not a multiple of the block size"),
            ConfigFault::BeyondAddressSpace => {
                write!(f, "passes the {PHYS_ADDR_BITS} bits of a physical address")
            }
            ConfigFault::BeyondRegion => write!(f, "is more than the region holds"),
            ConfigFault::NoWholeUnit => write!(f, "leaves no whole unit to plug"),
            ConfigFault::Changed { was } => write!(f, "changed, was {was:#x}"),
        }
    }
}

impl core::error::Error for ConfigError {}
