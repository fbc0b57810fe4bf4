//! Finds the capabilities of CXL in configuration space: designated vendor-specific extended
//! capabilities, DVSECs (CXL 3.1, 8.1).

use crate::registers::{Config, GONE};
use core::fmt;

/// The class code of a memory device: base class, subclass and interface (8.1.12.1).
pub const MEMORY_DEVICE_CLASS: [u8; 3] = [0x05, 0x02, 0x10];

/// The size of configuration space.
const SIZE: u16 = 4096;
/// Where extended capabilities begin.
const FIRST: u16 = 0x100;
/// The identity of an extended capability that is a DVSEC.
const DVSEC: u32 = 0x23;
/// The vendor of DVSECs that CXL defines.
const VENDOR: u32 = 0x1e98;
/// The size of a DVSEC's header, rounded up to whole registers.
const HEADER: u16 = 0xc;
/// The DVSEC of a device (8.1.3).
const DEVICE: u16 = 0;
/// The register locator (8.1.9).
const LOCATOR: u16 = 8;
/// `Mem_Capable` in the capability of a device, `Mem_Enable` in its control.
const MEMORY: u32 = 1 << 2;

/// A kind of registers that the locator names (Table 8-11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Component registers, which have the HDM decoders.
    Component,
    /// Device registers, which have the mailbox.
    Device,
}

/// Where a block of registers is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterBlock {
    /// The number of the BAR: 0 to 5.
    pub bar: u8,
    /// The offset of the block in the BAR: a multiple of 64 KiB.
    pub offset: u64,
}

/// What is wrong with the configuration space of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The device has been removed: its registers read as ones.
    Gone,
    /// A capability names a successor outside the space, or one that is not aligned.
    Successor {
        /// The offset of the capability.
        at: u16,
        /// The offset that it names.
        next: u16,
    },
    /// The list of capabilities does not end.
    Endless,
    /// A DVSEC is shorter than it must be, or ends beyond the space.
    Length {
        /// The offset of the DVSEC.
        at: u16,
        /// The length that it names.
        len: u16,
    },
    /// The locator names a BAR that no function has.
    Bar(u8),
    /// The block of registers is not within its BAR.
    BeyondBar {
        /// The block.
        block: RegisterBlock,
        /// The size of the BAR.
        bar_len: u64,
    },
    /// The function has no memory that CXL.mem can reach.
    NotMemory,
    /// The device did not change `Mem_Enable`. Its control may be locked.
    Unchanged,
}

impl RegisterBlock {
    /// Returns the offset of the block in a BAR of `bar_len` bytes, if `len` bytes of it are within.
    ///
    /// # Errors
    /// The block ends beyond the BAR.
    pub fn within(self, bar_len: u64, len: u64) -> Result<u64, ConfigError> {
        match self.offset.checked_add(len) {
            Some(end) if end <= bar_len => Ok(self.offset),
            _ => Err(ConfigError::BeyondBar { block: self, bar_len }),
        }
    }
}

/// Returns where the first block of this kind is. Returns `None` if the function does not have one.
///
/// # Errors
/// The device is gone, or its capabilities are malformed.
pub fn locate(
    config: &mut impl Config,
    kind: BlockKind,
) -> Result<Option<RegisterBlock>, ConfigError> {
    let Some(locator) = find(config, LOCATOR, HEADER)? else { return Ok(None) };
    let wanted = match kind {
        BlockKind::Component => 1,
        BlockKind::Device => 3,
    };
    for at in (locator.at + HEADER..).step_by(8).take(usize::from((locator.len - HEADER) / 8)) {
        let low = read(config, at)?;
        if low >> 8 & 0xff != wanted {
            continue;
        }
        let offset = u64::from(low & 0xffff_0000) | u64::from(config.read_u32(at + 4)) << 32;
        let bar = low.to_le_bytes()[0] & 7;
        return if bar < 6 {
            Ok(Some(RegisterBlock { bar, offset }))
        } else {
            Err(ConfigError::Bar(bar))
        };
    }
    Ok(None)
}

/// Lets the device answer to addresses of CXL.mem, or forbids it (`Mem_Enable`, 8.1.3.2). Forbid it
/// only when nothing accesses the memory any more.
///
/// # Errors
/// The device is gone, is no memory device, or has not changed its control.
pub fn set_memory_enabled(config: &mut impl Config, enabled: bool) -> Result<(), ConfigError> {
    let Some(device) = find(config, DEVICE, 0x10)? else { return Err(ConfigError::NotMemory) };
    // The capability is the upper half of this register, the identity of the DVSEC the lower one.
    if read(config, device.at + 8)? >> 16 & MEMORY == 0 {
        return Err(ConfigError::NotMemory);
    }
    let at = device.at + 0xc;
    // The upper half is the status, whose bits are cleared by ones.
    let control = read(config, at)? & 0xffff;
    let wanted = if enabled { control | MEMORY } else { control & !MEMORY };
    config.write_u32(at, wanted);
    if read(config, at)? & MEMORY == wanted & MEMORY { Ok(()) } else { Err(ConfigError::Unchanged) }
}

/// Returns whether addresses are routed to the device by its range registers, as firmware for CXL 1.1
/// does: `Mem_Enable` is set, and a range has a size and a base (8.1.3.8). The ranges count while
/// [`Decoders::is_enabled`](crate::Decoders::is_enabled) returns false. Memory behind them may be in
/// use, and enabling the decoders takes it away.
///
/// # Errors
/// The device is gone, is no memory device, or its capability is malformed.
pub fn uses_ranges(config: &mut impl Config) -> Result<bool, ConfigError> {
    /// Where each range begins. Its size and its base have an upper half, and a lower one with flags.
    const RANGES: [u16; 2] = [0x18, 0x28];
    const LOW_BITS: u32 = 0xf000_0000;
    let Some(device) = find(config, DEVICE, 0x38)? else { return Err(ConfigError::NotMemory) };
    if read(config, device.at + 0xc)? & MEMORY == 0 {
        return Ok(false);
    }
    let mut is_set = |at: u16| Ok(read(config, at)? != 0 || read(config, at + 4)? & LOW_BITS != 0);
    for at in RANGES.map(|range| device.at + range) {
        if is_set(at)? && is_set(at + 8)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the number of a port, by which the decoders of a bridge name it: bits 24 to 31 of the link
/// capabilities of its PCI Express capability. Returns `None` if the function has no such capability.
///
/// # Errors
/// The port is gone, or its capabilities are malformed.
pub fn port_number(config: &mut impl Config) -> Result<Option<u8>, ConfigError> {
    const LIST: u16 = 0x34;
    const PCI_EXPRESS: u8 = 0x10;
    let [mut next, ..] = read(config, LIST)?.to_le_bytes();
    let mut from = LIST;
    // Each capability has at least 4 bytes, and lies after the header of 64.
    for _ in 0..(256 - 64) / 4 {
        // The lowest two bits are reserved.
        let at = u16::from(next & !3);
        match at {
            0 => return Ok(None),
            1..64 => return Err(ConfigError::Successor { at: from, next: at }),
            _ => {}
        }
        let [id, following, ..] = read(config, at)?.to_le_bytes();
        if id == PCI_EXPRESS {
            let [.., port] = read(config, at + 0xc)?.to_le_bytes();
            return Ok(Some(port));
        }
        (from, next) = (at, following);
    }
    Err(ConfigError::Endless)
}

/// A DVSEC that lies within the space.
#[derive(Clone, Copy, Debug)]
struct Dvsec {
    at: u16,
    len: u16,
}

/// Finds the DVSEC of CXL with this identity, which must have `min_len` bytes.
fn find(config: &mut impl Config, id: u16, min_len: u16) -> Result<Option<Dvsec>, ConfigError> {
    let mut at = FIRST;
    // Each capability has at least 4 bytes.
    for _ in 0..(SIZE - FIRST) / 4 {
        let header = read(config, at)?;
        if header & 0xffff == DVSEC && at <= SIZE - HEADER {
            let vendor = read(config, at + 4)?;
            if vendor & 0xffff == VENDOR && read(config, at + 8)? & 0xffff == u32::from(id) {
                let len = (vendor >> 20) as u16;
                return if len < min_len || len > SIZE - at {
                    Err(ConfigError::Length { at, len })
                } else {
                    Ok(Some(Dvsec { at, len }))
                };
            }
        }
        let next = (header >> 20) as u16;
        match next {
            0 => return Ok(None),
            FIRST.. if next.is_multiple_of(4) => at = next,
            _ => return Err(ConfigError::Successor { at, next }),
        }
    }
    Err(ConfigError::Endless)
}

fn read(config: &mut impl Config, at: u16) -> Result<u32, ConfigError> {
    match config.read_u32(at) {
        GONE => Err(ConfigError::Gone),
        value => Ok(value),
    }
}

impl core::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Gone => f.write_str("the device has been removed"),
            ConfigError::Successor { at, next } => {
                write!(f, "the capability at {at:#x} names {next:#x} as the next")
            }
            ConfigError::Endless => f.write_str("the list of capabilities does not end"),
            ConfigError::Length { at, len } => {
                write!(f, "the DVSEC at {at:#x} has an impossible length of {len}")
            }
            ConfigError::Bar(bar) => write!(f, "there is no BAR {bar}"),
            ConfigError::BeyondBar { block, bar_len } => write!(
                f,
                "the registers at {:#x} lie beyond BAR {}, which has {bar_len:#x} bytes",
                block.offset, block.bar
            ),
            ConfigError::NotMemory => f.write_str("the function has no memory for CXL.mem"),
            ConfigError::Unchanged => f.write_str("the device did not change Mem_Enable"),
        }
    }
}
