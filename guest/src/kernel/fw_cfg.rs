//! Reads files of QEMU's fw_cfg device, by which QEMU passes ACPI's tables to a firmware (QEMU,
//! docs/specs/fw_cfg.rst). The device writes them to memory.

use super::memory::{AddressSpace, MapError};
use super::take_once::TakeOnce;
use crate::arch::{image, mmio};
use core::fmt;
use hotmem_directmap::Caching;
use hotmem_guest::device_tree::Range;
use hotmem_guest::fw_cfg::{DIRECTORY, DIRECTORY_BYTES, find_file};

/// The number of bytes of registers, and the offset of the one that takes the address of a request.
const REGISTERS: u64 = 24;
const REQUEST: usize = 16;
/// The bits of a request's control: the transfer failed, it reads, and it selects a file first.
const ERROR: u32 = 1;
const READ: u32 = 2;
const SELECT: u32 = 8;
/// The part of a file that is read. QEMU's tables with 32 memory slots have 10 KiB.
const MAX_BYTES: u32 = 64 << 10;

static MEMORY: TakeOnce<Memory> = TakeOnce::new(Memory {
    request: Request { control: 0, len: 0, address: 0 },
    contents: [0; MAX_BYTES as usize],
});

/// The device.
pub(crate) struct FwCfg {
    registers: usize,
    memory: &'static mut Memory,
}

/// The memory to which the device writes.
struct Memory {
    request: Request,
    contents: [u8; MAX_BYTES as usize],
}

/// A request. The numbers are big-endian.
#[repr(C, align(16))]
struct Request {
    control: u32,
    len: u32,
    address: u64,
}

/// The reason why a file cannot be read.
pub(crate) enum FwCfgError {
    /// The device has too few registers.
    Registers(Range),
    /// The registers cannot be mapped.
    Map(MapError),
    /// The device refuses a request, or does not answer it at once, as QEMU does. Contains its answer.
    Transfer(u32),
}

impl FwCfg {
    /// Opens the device. Ends the run at the second call.
    pub(crate) fn open(registers: Range, space: &mut AddressSpace) -> Result<Self, FwCfgError> {
        if registers.len < REGISTERS {
            return Err(FwCfgError::Registers(registers));
        }
        let mapped = space.map_bytes(registers.start, REGISTERS, Caching::Uncached);
        let registers = mapped.map_err(FwCfgError::Map)?.as_ptr().expose_provenance();
        Ok(FwCfg { registers, memory: MEMORY.take() })
    }

    /// Reads the first bytes of a file. Returns `None` if there is no file with this name.
    pub(crate) fn read(&mut self, name: &[u8]) -> Result<Option<&[u8]>, FwCfgError> {
        let directory = self.transfer(DIRECTORY, DIRECTORY_BYTES)?;
        let Some(file) = find_file(directory, name) else { return Ok(None) };
        self.transfer(file.key, file.size.min(MAX_BYTES)).map(Some)
    }

    /// Reads `len` bytes, at most [`MAX_BYTES`]. Those after the end of a file are zeros.
    fn transfer(&mut self, key: u16, len: u32) -> Result<&[u8], FwCfgError> {
        let Memory { request, contents } = &mut *self.memory;
        let contents = &mut contents[..len as usize];
        let phys = |pointer| image::phys(pointer).ok_or(FwCfgError::Transfer(ERROR));
        *request = Request {
            control: (u32::from(key) << 16 | SELECT | READ).to_be(),
            len: len.to_be(),
            address: phys(contents.as_mut_ptr().cast_const())?.to_be(),
        };
        let address = phys((&raw mut *request).cast_const().cast())?;
        // SAFETY: the register is mapped. The device writes to the request and to `len` bytes of `contents`
        // only, which nothing else uses.
        unsafe { mmio::write_u64(self.registers + REQUEST, address.to_be()) }
        // SAFETY: the reference is valid. The device has written to the memory, which the compiler does not
        // see.
        let control = u32::from_be(unsafe { (&raw const request.control).read_volatile() });
        if control == 0 { Ok(contents) } else { Err(FwCfgError::Transfer(control)) }
    }
}

impl fmt::Display for FwCfgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FwCfgError::Registers(Range { start, len }) => {
                write!(f, "fw_cfg has only {len} bytes of registers at {start:#x}")
            }
            FwCfgError::Map(error) => error.fmt(f),
            FwCfgError::Transfer(control) => write!(f, "fw_cfg answers a request by {control:#x}"),
        }
    }
}
