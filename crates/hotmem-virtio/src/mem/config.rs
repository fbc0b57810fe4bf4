//! Decodes and validates the device's configuration.

use super::config_error::{ConfigError, ConfigFault, ConfigField};
use super::features::Features;
use hotmem::geometry::{FRAME_SHIFT, FRAME_SIZE, PAGEBLOCK_FRAMES, PHYS_ADDR_BITS};
use hotmem::{Bytes, Pfn, PfnRange};

/// `struct virtio_mem_config` (5.15.4), as the device reports it. Its values are not trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawConfig {
    /// Bytes in a block. It never changes.
    pub block_size: u64,
    /// Proximity domain, if `ACPI_PXM` is negotiated. It never changes.
    pub node_id: u16,
    /// Physical address of the region. It never changes.
    pub addr: u64,
    /// Bytes in the region. It never changes.
    pub region_size: u64,
    /// Bytes at the region's start in which blocks can be plugged at present.
    pub usable_region_size: u64,
    /// Plugged bytes, as the device reports them.
    pub plugged_size: u64,
    /// Bytes that the device requests to be plugged.
    pub requested_size: u64,
}

/// A validated configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    features: Features,
    node: Option<u16>,
    block_frames: u64,
    region: PfnRange,
    usable_region: PfnRange,
    plugged_frames: u64,
    requested_frames: u64,
}

impl RawConfig {
    /// The size in the device's configuration space, in bytes.
    pub const SIZE: usize = 56;

    /// Decodes the bytes of the configuration space (little-endian).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> RawConfig {
        let u64_at = |offset: usize| {
            u64::from_le_bytes(core::array::from_fn(|i| {
                bytes.get(offset + i).copied().unwrap_or(0)
            }))
        };
        RawConfig {
            block_size: u64_at(0),
            node_id: u16::from_le_bytes([bytes[8], bytes[9]]),
            addr: u64_at(16),
            region_size: u64_at(24),
            usable_region_size: u64_at(32),
            plugged_size: u64_at(40),
            requested_size: u64_at(48),
        }
    }
}

impl Config {
    /// The maximal number of blocks in one request: the largest value of its 16-bit field
    /// `nb_blocks`.
    pub const MAX_REQUEST_BLOCKS: u64 = u16::MAX as u64;

    /// Validates the first configuration that a device reports.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn new(raw: &RawConfig, features: Features) -> Result<Config, ConfigError> {
        use ConfigFault::{
            BelowFrameSize, BeyondAddressSpace, BeyondRegion, NoWholeUnit, NotPowerOfTwo,
            Unaligned, Zero,
        };
        use ConfigField::{Addr, BlockSize, PluggedSize, RegionSize, UsableRegionSize};

        let block = raw.block_size;
        let check = |field, value, good, fault| {
            if good { Ok(()) } else { Err(ConfigError { field, value, fault }) }
        };
        check(BlockSize, block, block != 0, Zero)?;
        check(BlockSize, block, block.is_power_of_two(), NotPowerOfTwo)?;
        check(BlockSize, block, block >= FRAME_SIZE, BelowFrameSize)?;
        for (field, value) in [
            (Addr, raw.addr),
            (RegionSize, raw.region_size),
            (UsableRegionSize, raw.usable_region_size),
            (PluggedSize, raw.plugged_size),
            (ConfigField::RequestedSize, raw.requested_size),
        ] {
            check(field, value, value & (block - 1) == 0, Unaligned)?;
        }
        check(Addr, raw.addr, raw.addr >> PHYS_ADDR_BITS == 0, BeyondAddressSpace)?;
        check(RegionSize, raw.region_size, raw.region_size != 0, Zero)?;
        let region = PfnRange::from_bytes(raw.addr, Bytes(raw.region_size)).map_err(|_| {
            ConfigError { field: RegionSize, value: raw.region_size, fault: BeyondAddressSpace }
        })?;
        let in_region = |size| size <= raw.region_size;
        let usable = raw.usable_region_size;
        check(UsableRegionSize, usable, in_region(usable), BeyondRegion)?;
        check(PluggedSize, raw.plugged_size, in_region(raw.plugged_size), BeyondRegion)?;

        let config = Config {
            features,
            node: features.contains(Features::ACPI_PXM).then_some(raw.node_id),
            block_frames: block >> FRAME_SHIFT,
            region,
            usable_region: region.split_at(pfn_after(region, usable >> FRAME_SHIFT)).0,
            plugged_frames: raw.plugged_size >> FRAME_SHIFT,
            requested_frames: raw.requested_size >> FRAME_SHIFT,
        };
        check(RegionSize, raw.region_size, !config.managed().is_empty(), NoWholeUnit)?;
        Ok(config)
    }

    /// Validates a later configuration of the same device.
    ///
    /// # Errors
    /// The first field that is invalid, or that has changed although a device must not change it.
    pub fn updated(&self, raw: &RawConfig) -> Result<Config, ConfigError> {
        let fixed = [
            (ConfigField::BlockSize, self.block_size().0, raw.block_size),
            (ConfigField::NodeId, self.node.unwrap_or(raw.node_id).into(), raw.node_id.into()),
            (ConfigField::Addr, self.region.start().phys_addr(), raw.addr),
            (ConfigField::RegionSize, self.region.bytes().0, raw.region_size),
        ];
        for (field, was, value) in fixed {
            if was != value {
                return Err(ConfigError { field, value, fault: ConfigFault::Changed { was } });
            }
        }
        Config::new(raw, self.features)
    }

    /// Returns the negotiated features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the proximity domain, if the device has one.
    #[must_use]
    pub fn node(&self) -> Option<u16> {
        self.node
    }

    /// Returns the size of the device's blocks.
    #[must_use]
    pub fn block_size(&self) -> Bytes {
        Bytes(self.block_frames << FRAME_SHIFT)
    }

    /// Returns the size in frames of a unit, the smallest amount of memory that is plugged and
    /// unplugged: a block, or a pageblock (2 MiB) if blocks are smaller.
    #[must_use]
    pub fn unit_frames(&self) -> u64 {
        self.block_frames.max(PAGEBLOCK_FRAMES as u64)
    }

    /// Returns the whole region of the device.
    #[must_use]
    pub fn region(&self) -> PfnRange {
        self.region
    }

    /// Returns the part of the region that consists of whole units: the whole region, unless blocks
    /// are smaller than 2 MiB.
    #[must_use]
    pub fn managed(&self) -> PfnRange {
        self.region.align_inward(self.unit_frames())
    }

    /// Returns the part of the region in which the device accepts requests at present.
    #[must_use]
    pub fn usable(&self) -> PfnRange {
        self.usable_region
    }

    /// Returns the whole units of the usable region.
    #[must_use]
    pub fn usable_units(&self) -> PfnRange {
        self.usable_region.align_inward(self.unit_frames())
    }

    /// Returns the plugged size that the device reports.
    #[must_use]
    pub fn plugged(&self) -> Bytes {
        Bytes(self.plugged_frames << FRAME_SHIFT)
    }

    /// Returns the requested size.
    #[must_use]
    pub fn requested(&self) -> Bytes {
        Bytes(self.requested_frames << FRAME_SHIFT)
    }

    /// Returns the requested size, limited by the region and rounded down to whole units, in
    /// frames.
    pub(super) fn wanted_frames(&self) -> u64 {
        let wanted = self.requested_frames & !(self.unit_frames() - 1);
        wanted.min(self.managed().frames())
    }

    pub(super) fn block_frames(&self) -> u64 {
        self.block_frames
    }

    /// Returns the maximal number of frames in one request, in whole units.
    pub(super) fn max_request_frames(&self) -> u64 {
        // The product does not wrap, because a region of at most 2^40 frames holds at least one
        // block. The result is not zero, because 65 535 blocks of 4 KiB are more than a unit.
        (Self::MAX_REQUEST_BLOCKS * self.block_frames) & !(self.unit_frames() - 1)
    }
}

/// Returns the frame that lies `frames` above the region's start, or the region's end if that frame
/// lies beyond [`Pfn::LIMIT`].
fn pfn_after(region: PfnRange, frames: u64) -> Pfn {
    region.start().checked_add(frames).unwrap_or(region.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    type MakeInvalid = fn(&mut RawConfig);

    const VALID_CONFIG: RawConfig = RawConfig {
        block_size: 2 << 20,
        node_id: 1,
        addr: 4 << 30,
        region_size: 64 << 30,
        usable_region_size: 1 << 30,
        plugged_size: 4 << 20,
        requested_size: 512 << 20,
    };

    #[test]
    fn fields_are_read_at_the_specified_offsets() {
        let mut bytes = [0; RawConfig::SIZE];
        for (offset, value) in
            [(0, 2 << 20), (16, 3 << 30), (24, 4 << 30), (32, 5), (40, 6), (48, 7)]
        {
            bytes[offset..offset + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        bytes[8..10].copy_from_slice(&[0x34, 0x12]);
        let expected = RawConfig {
            block_size: 2 << 20,
            node_id: 0x1234,
            addr: 3 << 30,
            region_size: 4 << 30,
            usable_region_size: 5,
            plugged_size: 6,
            requested_size: 7,
        };
        assert_eq!(RawConfig::from_bytes(&bytes), expected);
    }

    #[test]
    fn a_valid_configuration_is_accepted() {
        let config = Config::new(&VALID_CONFIG, Features::ACPI_PXM).unwrap();
        assert_eq!(config.node(), Some(1));
        assert_eq!(config.region().bytes(), Bytes::gib(64));
        assert_eq!(config.usable().bytes(), Bytes::gib(1));
        assert_eq!(config.max_request_frames(), 65_535 * 512);
        assert_eq!(Config::new(&VALID_CONFIG, Features::empty()).unwrap().node(), None);
        assert_eq!(config.updated(&VALID_CONFIG), Ok(config));
    }

    #[test]
    fn every_invalid_field_is_reported() {
        use ConfigFault::*;
        use ConfigField::*;
        let cases: &[(MakeInvalid, ConfigField, ConfigFault)] = &[
            (|c| c.block_size = 0, BlockSize, Zero),
            (|c| c.block_size = 3 << 20, BlockSize, NotPowerOfTwo),
            (|c| c.block_size = 2048, BlockSize, BelowFrameSize),
            (|c| c.addr += 4096, Addr, Unaligned),
            (|c| c.region_size += 4096, RegionSize, Unaligned),
            (|c| c.usable_region_size += 4096, UsableRegionSize, Unaligned),
            (|c| c.plugged_size += 4096, PluggedSize, Unaligned),
            (|c| c.requested_size += 1, RequestedSize, Unaligned),
            (|c| c.addr = 1 << 52, Addr, BeyondAddressSpace),
            (|c| c.addr = u64::MAX << 21, Addr, BeyondAddressSpace),
            (|c| c.region_size = u64::MAX << 21, RegionSize, BeyondAddressSpace),
            (|c| c.addr = (1 << 52) - (2 << 20), RegionSize, BeyondAddressSpace),
            (|c| c.region_size = 0, RegionSize, Zero),
            (|c| c.usable_region_size = 65 << 30, UsableRegionSize, BeyondRegion),
            (|c| c.plugged_size = 65 << 30, PluggedSize, BeyondRegion),
            (
                |c| {
                    (c.block_size, c.addr, c.region_size) = (4096, 0x1000, 2 << 20);
                    (c.usable_region_size, c.plugged_size) = (0, 0);
                },
                RegionSize,
                NoWholeUnit,
            ),
        ];
        for (spoil, field, fault) in cases {
            let mut raw = VALID_CONFIG;
            spoil(&mut raw);
            let refused = Config::new(&raw, Features::empty()).unwrap_err();
            assert_eq!((refused.field, refused.fault), (*field, *fault), "{refused}");
            assert!(refused.to_string().starts_with(&field.to_string()));
        }
    }

    #[test]
    fn changes_of_constant_fields_are_refused() {
        let first = Config::new(&VALID_CONFIG, Features::ACPI_PXM).unwrap();
        let cases: &[(MakeInvalid, ConfigField)] = &[
            (|c| c.block_size = 4 << 20, ConfigField::BlockSize),
            (|c| c.node_id = 2, ConfigField::NodeId),
            (|c| c.addr = 8 << 30, ConfigField::Addr),
            (|c| c.region_size = 32 << 30, ConfigField::RegionSize),
        ];
        for (spoil, field) in cases {
            let mut raw = VALID_CONFIG;
            spoil(&mut raw);
            let refused = first.updated(&raw).unwrap_err();
            assert_eq!(refused.field, *field);
            assert!(matches!(refused.fault, ConfigFault::Changed { .. }));
        }
        // Without ACPI_PXM the field `node_id` is not valid, so it may change.
        let without_node = Config::new(&VALID_CONFIG, Features::empty()).unwrap();
        assert!(without_node.updated(&RawConfig { node_id: 7, ..VALID_CONFIG }).is_ok());
    }

    #[test]
    fn blocks_smaller_than_a_pageblock_are_handled_in_pageblocks() {
        let raw = RawConfig {
            block_size: 4096,
            addr: 0x1000,
            region_size: 64 << 20,
            usable_region_size: 32 << 20,
            plugged_size: 0,
            requested_size: (4 << 20) + 4096,
            ..VALID_CONFIG
        };
        let config = Config::new(&raw, Features::empty()).unwrap();
        assert_eq!(config.unit_frames(), 512);
        assert_eq!(config.managed().bytes(), Bytes::mib(62));
        assert_eq!(config.usable_units().bytes(), Bytes::mib(30));
        assert_eq!(config.wanted_frames(), 1024);
        assert_eq!(config.max_request_frames(), 127 * 512);
    }

    #[test]
    fn a_block_may_be_as_large_as_the_largest_region() {
        let size = 1 << 51;
        let raw = RawConfig {
            block_size: size,
            node_id: 0,
            addr: 0,
            region_size: size,
            usable_region_size: size,
            plugged_size: 0,
            requested_size: size,
        };
        let config = Config::new(&raw, Features::empty()).unwrap();
        assert_eq!(config.wanted_frames(), size >> FRAME_SHIFT);
        assert_eq!(config.max_request_frames() >> (51 - FRAME_SHIFT), 65_535);
    }
}
