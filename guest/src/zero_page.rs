//! Reads the zero page (`boot_params`) that a loader passes by Linux's 64-bit boot protocol.
//!
//! The layout is that of Linux's `Documentation/arch/x86/zero-page.rst` and `boot.rst`; all fields are
//! little-endian.

#[cfg(test)]
mod tests;

use crate::loader_table::{PhysicalMemory, TableError, copy_command_line, u32_at, u64_at};
use crate::memory_map::MemoryMapEntry;
use crate::pvh;

const PAGE_BYTES: usize = 4096;
/// `HdrS`.
const MAGIC: u32 = 0x5372_6448;

/// The offsets of fields.
const RSDP_ADDR: usize = 0x70;
const INITRD_ADDR: Halves = Halves { low: 0x218, high: 0xc0 };
const INITRD_BYTES: Halves = Halves { low: 0x21c, high: 0xc4 };
const CMDLINE_ADDR: Halves = Halves { low: 0x228, high: 0xc8 };
const MAP_ENTRIES: usize = 0x1e8;
const HEADER: usize = 0x202;
const MAP: usize = 0x2d0;

const MAP_ENTRY_BYTES: usize = 20;
/// The number of entries for which the page has room.
const MAX_MAP_ENTRIES: usize = 128;

/// The zero page of a loader.
#[derive(Clone, Copy, Debug)]
pub struct ZeroPage<'a>(&'a [u8]);

/// The offsets of the two halves of a 64-bit value.
struct Halves {
    low: usize,
    high: usize,
}

impl<'a> ZeroPage<'a> {
    /// Reads the page at `phys_addr`. Returns `None` if there is no zero page, but maybe another
    /// table.
    ///
    /// # Errors
    /// [`TableError::OutOfReach`] if nothing can be read at the address.
    pub fn read(
        memory: &'a impl PhysicalMemory,
        phys_addr: u64,
    ) -> Result<Option<ZeroPage<'a>>, TableError> {
        // Another table may be shorter than a page, and lie at the end of what can be read.
        let out_of_reach = TableError::OutOfReach { table: "boot information", phys_addr };
        memory.bytes(phys_addr, 4).ok_or(out_of_reach)?;
        let page = memory.bytes(phys_addr, PAGE_BYTES);
        // The command line or the map of PVH, which may lie behind `start_info`, may have any bytes.
        let is_zero_page =
            |page: &&[u8]| u32_at(page, 0) != pvh::MAGIC && u32_at(page, HEADER) == MAGIC;
        Ok(page.filter(is_zero_page).map(ZeroPage))
    }

    /// Returns the physical address of ACPI's root pointer, if the loader passed one.
    #[must_use]
    pub fn rsdp_addr(&self) -> Option<u64> {
        Some(u64_at(self.0, RSDP_ADDR)).filter(|&addr| addr != 0)
    }

    /// Returns the initial RAM disk as RAM in use, if the loader passed one.
    #[must_use]
    pub fn initrd(&self) -> Option<MemoryMapEntry> {
        let [addr, size] = [INITRD_ADDR, INITRD_BYTES].map(|halves| self.value(halves));
        (size != 0).then_some(MemoryMapEntry { addr, size, kind: MemoryMapEntry::RAM })
    }

    /// Copies the memory map into `buffer` and returns it.
    ///
    /// # Errors
    /// [`TableError::NoMemoryMap`] if the map is empty, [`TableError::TooMany`] if it does not fit in
    /// the page or in `buffer`.
    pub fn memory_map<'r>(
        &self,
        buffer: &'r mut [MemoryMapEntry],
    ) -> Result<&'r [MemoryMapEntry], TableError> {
        let (entries, max) = (self.0[MAP_ENTRIES], buffer.len().min(MAX_MAP_ENTRIES));
        if entries == 0 {
            return Err(TableError::NoMemoryMap);
        }
        let too_many = TableError::TooMany { table: "memory map", entries: entries.into(), max };
        let buffer = buffer[..max].get_mut(..entries.into()).ok_or(too_many)?;
        for (entry, raw) in buffer.iter_mut().zip(self.0[MAP..].chunks_exact(MAP_ENTRY_BYTES)) {
            *entry = MemoryMapEntry {
                addr: u64_at(raw, 0),
                size: u64_at(raw, 8),
                kind: u32_at(raw, 16),
            };
        }
        Ok(buffer)
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
        copy_command_line(memory, self.value(CMDLINE_ADDR), buffer)
    }

    fn value(&self, Halves { low, high }: Halves) -> u64 {
        u64::from(u32_at(self.0, low)) | u64::from(u32_at(self.0, high)) << 32
    }
}
