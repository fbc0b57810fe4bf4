//! Reads the CXL Early Discovery Table, which lists host bridges and the windows of physical addresses
//! that are routed to them (CXL 3.1, 9.18.1).

use crate::{
    fields::{u16_at, u32_at, u64_at},
    interleave::{Granularity, UNIT, Ways},
};
use core::fmt;
use hotmem_addr::{AddrError, Bytes, PfnRange};

/// A structure of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Structure {
    /// A host bridge (CHBS).
    HostBridge(HostBridge),
    /// A window (CFMWS).
    Window(Window),
    /// A structure of another type, which this crate does not need.
    Other {
        /// The type.
        kind: u8,
    },
}

/// A host bridge of CXL 2.0 or later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostBridge {
    /// The number by which windows name the bridge: the `_UID` of its ACPI device. In QEMU this is the
    /// number of its root bus.
    pub uid: u32,
    /// Where the component registers are: at least [`COMPONENT_BYTES`].
    pub registers: PfnRange,
}

/// A window: physical addresses that the platform routes to host bridges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The addresses: start and size are multiples of [`UNIT`].
    pub range: PfnRange,
    /// How many bridges the addresses alternate between.
    pub ways: Ways,
    /// After how many bytes the next bridge follows.
    pub granularity: Granularity,
    /// How the bridge of an address is computed.
    pub arithmetic: Arithmetic,
    /// What may be mapped in the window.
    pub restrictions: Restrictions,
    /// The bridges in turn. Only the first [`Ways::count`] are valid.
    targets: [u32; MAX_TARGETS],
}

/// How the bridge of an address is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arithmetic {
    /// From the address bits above the granularity.
    Modulo,
    /// From exclusive ORs of address bits, which another structure of the table (CXIMS) lists.
    Xor,
}

/// What may be mapped in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restrictions(pub u16);

impl Restrictions {
    /// Memory whose coherency the host alone keeps: that of memory devices (type 3).
    pub const HOST_ONLY: Restrictions = Restrictions(1 << 1);
    /// Volatile memory.
    pub const VOLATILE: Restrictions = Restrictions(1 << 2);
    /// Persistent memory.
    pub const PERSISTENT: Restrictions = Restrictions(1 << 3);
    /// The decoders must stay as the firmware has set them.
    pub const FIXED: Restrictions = Restrictions(1 << 4);

    /// Returns whether all of `other`'s bits are set.
    #[must_use]
    pub const fn contains(self, other: Restrictions) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The largest number of targets of a window.
const MAX_TARGETS: usize = 16;
/// The size of the component registers of a bridge or a device.
pub const COMPONENT_BYTES: u64 = 0x1_0000;

/// A structure that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CedtError {
    /// The offset of the structure after the table's header, in bytes.
    pub at: usize,
    /// What is wrong with it.
    pub fault: CedtFault,
}

/// What is wrong with a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CedtFault {
    /// The structure is shorter than a header, or longer than the rest of the table, so the structures
    /// after it cannot be found.
    Cut {
        /// The length that the structure names.
        len: usize,
        /// The number of bytes up to the end of the table.
        remaining: usize,
    },
    /// The structure is shorter than its type requires.
    Short {
        /// The length that the structure names.
        len: usize,
        /// The length that is required.
        wanted: usize,
    },
    /// The address and the size are not a range of frames.
    Range(AddrError),
    /// The bridge is one of CXL 1.1, or of an unknown version.
    Version(u32),
    /// The registers of the bridge are smaller than [`COMPONENT_BYTES`].
    Registers {
        /// Their size.
        len: u64,
    },
    /// The start or the size of the window is not a multiple of [`UNIT`], or the size is 0.
    Unaligned {
        /// The first address.
        start: u64,
        /// The size.
        len: u64,
    },
    /// The encoding of the number of ways is reserved.
    Ways(u8),
    /// The encoding of the granularity is reserved.
    Granularity(u32),
    /// The arithmetic is unknown.
    Arithmetic(u8),
}

impl Window {
    /// Returns the `uid` of each bridge, in the order in which addresses alternate. Firmware may name a
    /// bridge twice.
    #[must_use]
    pub fn targets(&self) -> &[u32] {
        &self.targets[..self.ways.count()]
    }
}

/// Returns the structures of the table, which begin at offset 36 of the table. A faulty structure is
/// an error of its own. The first that is [cut](CedtFault::Cut) is the last item.
pub fn structures(structures: &[u8]) -> impl Iterator<Item = Result<Structure, CedtError>> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let rest = structures.get(at..).filter(|rest| !rest.is_empty())?;
        let start = at;
        let named = u16_at(rest, 2).map_or(rest.len(), usize::from);
        let found = match rest.get(..named).filter(|structure| structure.len() >= 4) {
            Some(structure) => {
                at += named;
                read(structure)
            }
            None => {
                at = structures.len();
                Err(CedtFault::Cut { len: named, remaining: rest.len() })
            }
        };
        Some(found.map_err(|fault| CedtError { at: start, fault }))
    })
}

/// Reads a structure of at least 4 bytes.
fn read(structure: &[u8]) -> Result<Structure, CedtFault> {
    match structure[0] {
        0 => host_bridge(structure).map(Structure::HostBridge),
        1 => window(structure).map(Structure::Window),
        kind => Ok(Structure::Other { kind }),
    }
}

/// Returns what `field` reads, or the fault that the structure is too short.
fn wanted<T>(structure: &[u8], wanted: usize, field: Option<T>) -> Result<T, CedtFault> {
    field.ok_or(CedtFault::Short { len: structure.len(), wanted })
}

fn host_bridge(structure: &[u8]) -> Result<HostBridge, CedtFault> {
    const LEN: usize = 32;
    let fields = || {
        Some((
            u32_at(structure, 4)?,
            u32_at(structure, 8)?,
            u64_at(structure, 16)?,
            u64_at(structure, 24)?,
        ))
    };
    let (uid, version, start, len) = wanted(structure, LEN, fields())?;
    if version != 1 {
        return Err(CedtFault::Version(version));
    }
    if len < COMPONENT_BYTES {
        return Err(CedtFault::Registers { len });
    }
    let registers = PfnRange::from_bytes(start, Bytes(len)).map_err(CedtFault::Range)?;
    Ok(HostBridge { uid, registers })
}

fn window(structure: &[u8]) -> Result<Window, CedtFault> {
    const TARGETS: usize = 36;
    let fields = || {
        Some((
            u64_at(structure, 8)?,
            u64_at(structure, 16)?,
            *structure.get(24)?,
            *structure.get(25)?,
            u32_at(structure, 28)?,
            u16_at(structure, 32)?,
        ))
    };
    let (start, len, ways, arithmetic, granularity, restrictions) =
        wanted(structure, TARGETS + 4, fields())?;
    let ways = Ways::from_encoding(ways).ok_or(CedtFault::Ways(ways))?;
    let encoded = u8::try_from(granularity).ok().and_then(Granularity::from_encoding);
    let granularity = encoded.ok_or(CedtFault::Granularity(granularity))?;
    let arithmetic = match arithmetic {
        0 => Arithmetic::Modulo,
        1 => Arithmetic::Xor,
        other => return Err(CedtFault::Arithmetic(other)),
    };
    let mut targets = [0; MAX_TARGETS];
    let count = ways.count();
    for (n, place) in targets[..count].iter_mut().enumerate() {
        let target = u32_at(structure, TARGETS + 4 * n);
        *place = wanted(structure, TARGETS + 4 * count, target)?;
    }
    if len == 0 || start % UNIT != 0 || len % UNIT != 0 {
        return Err(CedtFault::Unaligned { start, len });
    }
    let range = PfnRange::from_bytes(start, Bytes(len)).map_err(CedtFault::Range)?;
    let restrictions = Restrictions(restrictions);
    Ok(Window { range, ways, granularity, arithmetic, restrictions, targets })
}

impl core::error::Error for CedtError {}
impl core::error::Error for CedtFault {}

impl fmt::Display for CedtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "structure of the CEDT at {:#x}: {}", self.at, self.fault)
    }
}

impl fmt::Display for CedtFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CedtFault::Cut { len, remaining } => {
                write!(f, "its length is {len}, and {remaining} bytes remain in the table")
            }
            CedtFault::Short { len, wanted } => {
                write!(f, "its length is {len}, but must be {wanted}")
            }
            CedtFault::Range(error) => error.fmt(f),
            CedtFault::Version(version) => write!(f, "the bridge has version {version}"),
            CedtFault::Registers { len } => write!(f, "the bridge has {len:#x} bytes of registers"),
            CedtFault::Unaligned { start, len } => {
                write!(
                    f,
                    "a window at {start:#x} with {len:#x} bytes is not whole units of 256 MiB"
                )
            }
            CedtFault::Ways(encoding) => write!(f, "ways {encoding} are reserved"),
            CedtFault::Granularity(encoding) => write!(f, "granularity {encoding} is reserved"),
            CedtFault::Arithmetic(number) => write!(f, "arithmetic {number} is unknown"),
        }
    }
}
