//! Reads and writes the tables of a PVH loader: `hvm_start_info`, and the tables that
//! `hvm_start_info` points to.
//!
//! The layout is Xen's `public/arch-x86/hvm/start_info.h`; all fields are little-endian.
//!
//! | file | contents |
//! |---|---|
//! | `pvh.rs` | reads the tables of the loader |
//! | `pvh/handover.rs` | writes the tables for the next kernel |

mod handover;
#[cfg(test)]
mod tests;

pub use handover::Handover;

use crate::loader_table::{PhysicalMemory, TableError, copy_command_line, u32_at, u64_at};
use crate::memory_map::MemoryMapEntry;

/// `XEN_HVM_START_MAGIC_VALUE`.
pub(crate) const MAGIC: u32 = 0x336e_c578;
const START_INFO_BYTES: usize = 56;
const MAP_ENTRY_BYTES: usize = 24;
const MODULE_BYTES: usize = 32;

/// The contents of `hvm_start_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartInfo {
    cmdline_addr: u64,
    rsdp_addr: u64,
    memmap_addr: u64,
    memmap_entries: u32,
    modlist_addr: u64,
    modules: u32,
}

impl StartInfo {
    /// Reads the structure at `phys_addr`.
    ///
    /// # Errors
    /// [`TableError`] if the structure is not `hvm_start_info`, has no memory map, or is not
    /// accessible.
    pub fn read(memory: &impl PhysicalMemory, phys_addr: u64) -> Result<StartInfo, TableError> {
        let out_of_reach = TableError::OutOfReach { table: "start_info", phys_addr };
        let raw = memory.bytes(phys_addr, START_INFO_BYTES).ok_or(out_of_reach)?;
        if u32_at(raw, 0) != MAGIC {
            return Err(TableError::BadMagic(u32_at(raw, 0)));
        }
        let (version, memmap_entries) = (u32_at(raw, 4), u32_at(raw, 48));
        if version == 0 || memmap_entries == 0 {
            return Err(TableError::NoMemoryMap);
        }
        Ok(StartInfo {
            modules: u32_at(raw, 12),
            modlist_addr: u64_at(raw, 16),
            cmdline_addr: u64_at(raw, 24),
            rsdp_addr: u64_at(raw, 32),
            memmap_addr: u64_at(raw, 40),
            memmap_entries,
        })
    }

    /// Returns the physical address of ACPI's root pointer, if the loader passed one.
    #[must_use]
    pub fn rsdp_addr(&self) -> Option<u64> {
        (self.rsdp_addr != 0).then_some(self.rsdp_addr)
    }

    /// Copies the memory map into `buffer` and returns it.
    ///
    /// # Errors
    /// [`TableError::TooMany`] if the map does not fit in `buffer`, [`TableError::OutOfReach`] if the
    /// map is not accessible.
    pub fn memory_map<'r>(
        &self,
        memory: &impl PhysicalMemory,
        buffer: &'r mut [MemoryMapEntry],
    ) -> Result<&'r [MemoryMapEntry], TableError> {
        let table = Table {
            name: "memory map",
            phys_addr: self.memmap_addr,
            entries: self.memmap_entries,
            entry_bytes: MAP_ENTRY_BYTES,
        };
        table.copy(memory, buffer, |raw| MemoryMapEntry {
            addr: u64_at(raw, 0),
            size: u64_at(raw, 8),
            kind: u32_at(raw, 16),
        })
    }

    /// Copies the list of modules (for example an initial RAM disk) into `buffer`, as RAM in use.
    ///
    /// # Errors
    /// As for [`StartInfo::memory_map`].
    pub fn modules<'r>(
        &self,
        memory: &impl PhysicalMemory,
        buffer: &'r mut [MemoryMapEntry],
    ) -> Result<&'r [MemoryMapEntry], TableError> {
        let table = Table {
            name: "module list",
            phys_addr: self.modlist_addr,
            entries: self.modules,
            entry_bytes: MODULE_BYTES,
        };
        table.copy(memory, buffer, |raw| MemoryMapEntry {
            addr: u64_at(raw, 0),
            size: u64_at(raw, 8),
            kind: MemoryMapEntry::RAM,
        })
    }

    /// Copies the command line, without its final zero, into `buffer` and returns it.
    ///
    /// # Errors
    /// [`TableError::CmdlineTooLong`] if the command line does not fit in `buffer`,
    /// [`TableError::OutOfReach`] if it is not accessible.
    pub fn cmdline<'r>(
        &self,
        memory: &impl PhysicalMemory,
        buffer: &'r mut [u8],
    ) -> Result<&'r [u8], TableError> {
        copy_command_line(memory, self.cmdline_addr, buffer)
    }
}

/// An array in the loader's tables.
struct Table {
    name: &'static str,
    phys_addr: u64,
    entries: u32,
    entry_bytes: usize,
}

impl Table {
    fn copy<'r>(
        &self,
        memory: &impl PhysicalMemory,
        buffer: &'r mut [MemoryMapEntry],
        parse: impl Fn(&[u8]) -> MemoryMapEntry,
    ) -> Result<&'r [MemoryMapEntry], TableError> {
        let Table { name: table, phys_addr, entries, entry_bytes } = *self;
        let too_many = TableError::TooMany { table, entries, max: buffer.len() };
        let buffer = buffer.get_mut(..entries as usize).ok_or(too_many)?;
        if buffer.is_empty() {
            return Ok(buffer);
        }
        let out_of_reach = TableError::OutOfReach { table, phys_addr };
        let raw = memory.bytes(phys_addr, buffer.len() * entry_bytes).ok_or(out_of_reach)?;
        for (entry, raw) in buffer.iter_mut().zip(raw.chunks_exact(entry_bytes)) {
            *entry = parse(raw);
        }
        Ok(buffer)
    }
}
