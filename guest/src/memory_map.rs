//! Defines the entries of the memory map that the loader passes.

/// An entry of the memory map, as the loader wrote it, without any checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryMapEntry {
    /// The address of the first byte.
    pub addr: u64,
    /// The size in bytes.
    pub size: u64,
    /// The E820 type.
    pub kind: u32,
}

impl MemoryMapEntry {
    /// E820's type for usable memory (`XEN_HVM_MEMMAP_TYPE_RAM`).
    pub const RAM: u32 = 1;
    /// An entry without memory.
    pub const EMPTY: MemoryMapEntry = MemoryMapEntry { addr: 0, size: 0, kind: 0 };
}
