//! Defines the errors of a device's configuration.

use core::fmt;
use hotmem::geometry::PHYS_ADDR_BITS;

/// An invalid configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The invalid field.
    pub field: ConfigField,
    /// Its value.
    pub value: u64,
    /// The way in which the value is invalid.
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

/// The way in which a field is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFault {
    /// The value is zero.
    Zero,
    /// The value is not a power of two.
    NotPowerOfTwo,
    /// The value is less than a frame (4 KiB).
    BelowFrameSize,
    /// The value is not a multiple of the block size.
    Unaligned,
    /// The region ends beyond the last physical address.
    BeyondAddressSpace,
    /// The value exceeds the region's size.
    BeyondRegion,
    /// The region contains no whole unit (2 MiB).
    NoWholeUnit,
    /// The value has changed.
    Changed {
        /// The former value.
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
                write!(f, "exceeds the {PHYS_ADDR_BITS} bits of a physical address")
            }
            ConfigFault::BeyondRegion => write!(f, "exceeds the region's size"),
            ConfigFault::NoWholeUnit => write!(f, "contains no whole unit to plug"),
            ConfigFault::Changed { was } => write!(f, "differs from the former value {was:#x}"),
        }
    }
}

impl core::error::Error for ConfigError {}
