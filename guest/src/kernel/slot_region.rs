//! Finds the registers of memory slots in the DSDT, without interpreting it.

use super::fw_cfg::{FwCfg, FwCfgError};
use super::memory::AddressSpace;
use crate::arch::IoPort;
use core::fmt;
use hotmem_acpi::aml::{self, AddressSpace as Space, AmlError, Region};
use hotmem_guest::device_tree::Range;
use hotmem_guest::fw_cfg::find_table;

/// The number of bytes of the slots' registers, and of that of a generic event device.
pub(super) const SLOT_BYTES: u16 = 24;
pub(super) const EVENT_BYTES: u64 = 4;

/// The registers of memory slots.
#[derive(Clone, Copy)]
pub(crate) struct SlotRegion {
    /// Where the registers are.
    pub(crate) place: SlotPlace,
    /// The number of slots.
    pub(crate) count: u32,
}

/// Where the registers of memory slots are, and who tells of changes.
#[derive(Clone, Copy)]
pub(crate) enum SlotPlace {
    /// I/O ports, from this one on. A general-purpose event tells of changes.
    Ports(IoPort),
    /// Memory, from this address on. A generic event device tells of changes.
    Memory(u64, EventDevice),
}

/// A generic event device (ACPI 6.5, 5.6.9) of QEMU.
#[derive(Clone, Copy)]
pub(crate) struct EventDevice {
    /// The address of the register that has a bit for each event. Reading it clears it.
    pub(crate) register: u64,
    /// The interrupt line, which is raised for a moment.
    pub(crate) line: u32,
}

/// The reason why the registers of memory slots cannot be used.
pub(crate) enum SlotsError {
    /// The DSDT does not say where they are.
    Aml(AmlError),
    /// They are at an impossible place, or there is an impossible number of slots.
    Region(Region, u64),
    /// They are in memory, and there is no event device.
    NoEventDevice,
    /// The DSDT cannot be read.
    FwCfg(FwCfgError),
}

impl SlotRegion {
    /// Finds the registers that a DSDT names, or returns `None` if it names none.
    pub(crate) fn of_dsdt(dsdt: &[u8]) -> Result<Option<Self>, SlotsError> {
        let Some(region) = aml::find_region(dsdt, b"HPMR")? else { return Ok(None) };
        let count = aml::find_integer(dsdt, b"MDNR")?.unwrap_or(0);
        let impossible = SlotsError::Region(region, count);
        let place = match region.space {
            _ if region.len < u64::from(SLOT_BYTES) => None,
            Space::Ports => {
                let port = u16::try_from(region.start).ok();
                let port = port.filter(|&port| port <= u16::MAX - SLOT_BYTES);
                port.and_then(IoPort::new).map(SlotPlace::Ports)
            }
            Space::Memory => Some(SlotPlace::Memory(region.start, EventDevice::of_dsdt(dsdt)?)),
            Space::Other(_) => None,
        };
        match (place, u32::try_from(count)) {
            (Some(place), Ok(count)) => Ok(Some(SlotRegion { place, count })),
            _ => Err(impossible),
        }
    }

    /// Finds the registers that the DSDT names which QEMU keeps for a firmware, or returns `None` if there
    /// is none. `fw_cfg` are the registers of QEMU's device for firmware.
    #[inline(never)]
    pub(crate) fn of_fw_cfg(
        fw_cfg: Option<Range>,
        space: &mut AddressSpace,
    ) -> Result<Option<Self>, SlotsError> {
        let Some(registers) = fw_cfg else { return Ok(None) };
        let mut device = FwCfg::open(registers, space)?;
        let dsdt = device.read(b"etc/acpi/tables")?.and_then(|tables| find_table(tables, b"DSDT"));
        dsdt.map_or(Ok(None), Self::of_dsdt)
    }
}

impl EventDevice {
    fn of_dsdt(dsdt: &[u8]) -> Result<Self, SlotsError> {
        let region = aml::find_region(dsdt, b"EREG")?;
        let register = region
            .filter(|region| region.space == Space::Memory && region.len >= EVENT_BYTES)
            .ok_or(SlotsError::NoEventDevice)?
            .start;
        let line = aml::find_interrupt(dsdt, b"ACPI0013")?.ok_or(SlotsError::NoEventDevice)?;
        Ok(EventDevice { register, line })
    }
}

impl From<AmlError> for SlotsError {
    fn from(error: AmlError) -> Self {
        SlotsError::Aml(error)
    }
}

impl From<FwCfgError> for SlotsError {
    fn from(error: FwCfgError) -> Self {
        SlotsError::FwCfg(error)
    }
}

impl fmt::Display for SlotsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotsError::Aml(error) => error.fmt(f),
            SlotsError::Region(region, count) => write!(f, "{count} memory slots at {region:?}"),
            SlotsError::NoEventDevice => f.write_str("the DSDT has no event device in memory"),
            SlotsError::FwCfg(error) => error.fmt(f),
        }
    }
}
