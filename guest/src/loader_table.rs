//! What the tables of all loaders have in common: how they are read from memory, and why they are
//! refused.

use core::fmt;

/// Physical memory that the boot code can access.
pub trait PhysicalMemory {
    /// Returns the `len` bytes at `phys_addr`, or `None` if some of them are not accessible.
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]>;
}

/// The reason why the loader's tables were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// The tables begin with this number, which is neither the magic number of PVH nor that of
    /// Linux's boot protocol.
    BadMagic(u32),
    /// The tables have no memory map.
    NoMemoryMap,
    /// A table lies outside the boot mapping.
    OutOfReach {
        /// The name of the table.
        table: &'static str,
        /// The address of the bytes that are out of reach.
        phys_addr: u64,
    },
    /// A table has too many entries.
    TooMany {
        /// The name of the table.
        table: &'static str,
        /// The number of entries.
        entries: u32,
        /// The maximal number of entries.
        max: usize,
    },
    /// The command line is longer than the buffer. Contains the buffer's length.
    CmdlineTooLong(usize),
    /// The buffer is too small for the tables of the next kernel. Contains the number of bytes that
    /// these tables need.
    BufferTooSmall(usize),
}

/// Copies the command line at `phys_addr`, without its final zero, into `buffer` and returns it. It is
/// empty if the address is 0.
pub(crate) fn copy_command_line<'r>(
    memory: &impl PhysicalMemory,
    phys_addr: u64,
    buffer: &'r mut [u8],
) -> Result<&'r [u8], TableError> {
    if phys_addr == 0 {
        return Ok(&[]);
    }
    for len in 0..buffer.len() {
        let phys_addr = phys_addr.wrapping_add(len as u64);
        let out_of_reach = TableError::OutOfReach { table: "command line", phys_addr };
        match memory.bytes(phys_addr, 1).ok_or(out_of_reach)?[0] {
            0 => return Ok(&buffer[..len]),
            byte => buffer[len] = byte,
        }
    }
    Err(TableError::CmdlineTooLong(buffer.len()))
}

pub(crate) fn u32_at(raw: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&raw[at..at + 4]);
    u32::from_le_bytes(bytes)
}

pub(crate) fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | u64::from(u32_at(raw, at + 4)) << 32
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TableError::BadMagic(found) => write!(f, "the loader's tables have magic {found:#x}"),
            TableError::NoMemoryMap => write!(f, "the loader's tables have no memory map"),
            TableError::OutOfReach { table, phys_addr } => {
                write!(f, "{table} at {phys_addr:#x} lies outside the boot mapping")
            }
            TableError::TooMany { table, entries, max } => {
                write!(f, "{table} has {entries} entries, which is more than {max}")
            }
            TableError::CmdlineTooLong(max) => {
                write!(f, "the command line is longer than {max} bytes")
            }
            TableError::BufferTooSmall(len) => {
                write!(f, "the tables of {len} bytes do not fit in the buffer")
            }
        }
    }
}
