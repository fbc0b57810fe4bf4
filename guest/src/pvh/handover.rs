//! Writes the tables that this kernel, as a PVH loader, passes to the next kernel.

use super::{MAGIC, MAP_ENTRY_BYTES, MODULE_BYTES, START_INFO_BYTES};
use crate::loader_table::TableError;
use crate::memory_map::MemoryMapEntry;

/// The contents of the tables that this kernel, as a PVH loader, passes to the next kernel.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// The command line of the next kernel.
    pub cmdline: &'a [u8],
    /// The physical address of ACPI's root pointer, if it is known.
    pub rsdp_addr: Option<u64>,
    /// The memory map.
    pub memory_map: &'a [MemoryMapEntry],
    /// The modules.
    pub modules: &'a [MemoryMapEntry],
}

impl Handover<'_> {
    /// Writes `start_info` and all tables that it points to. `phys_addr` is the physical address of
    /// `buffer`.
    ///
    /// # Errors
    /// [`TableError::BufferTooSmall`] if `buffer` is too small.
    pub fn write(&self, phys_addr: u64, buffer: &mut [u8]) -> Result<(), TableError> {
        let [map_len, modules_len] =
            [(self.memory_map, MAP_ENTRY_BYTES), (self.modules, MODULE_BYTES)]
                .map(|(entries, size)| entries.len() * size);
        // All tables are aligned to 8 bytes.
        let map_at = START_INFO_BYTES;
        let modules_at = map_at + map_len;
        let cmdline_at = modules_at + modules_len;
        let len = cmdline_at + self.cmdline.len() + 1;
        let buffer = buffer.get_mut(..len).ok_or(TableError::BufferTooSmall(len))?;
        buffer.fill(0);
        let mut put = |at: usize, bytes: &[u8]| buffer[at..at + bytes.len()].copy_from_slice(bytes);
        let count = |entries: &[MemoryMapEntry]| {
            u32::try_from(entries.len())
                .map_err(|_| TableError::BufferTooSmall(len))
                .map(u32::to_le_bytes)
        };
        put(0, &MAGIC.to_le_bytes());
        put(4, &1u32.to_le_bytes());
        put(12, &count(self.modules)?);
        put(16, &(phys_addr + modules_at as u64).to_le_bytes());
        put(24, &(phys_addr + cmdline_at as u64).to_le_bytes());
        put(32, &self.rsdp_addr.unwrap_or(0).to_le_bytes());
        put(40, &(phys_addr + map_at as u64).to_le_bytes());
        put(48, &count(self.memory_map)?);
        for (index, entry) in self.memory_map.iter().enumerate() {
            let at = map_at + index * MAP_ENTRY_BYTES;
            put(at, &entry.addr.to_le_bytes());
            put(at + 8, &entry.size.to_le_bytes());
            put(at + 16, &entry.kind.to_le_bytes());
        }
        for (index, module) in self.modules.iter().enumerate() {
            let at = modules_at + index * MODULE_BYTES;
            put(at, &module.addr.to_le_bytes());
            put(at + 8, &module.size.to_le_bytes());
        }
        put(cmdline_at, self.cmdline);
        Ok(())
    }
}
