//! The memory map that the shim has read, and the region that it has appended.

use core::arch::global_asm;
use core::ops::Range;

global_asm!(include_str!("shim.s"));

/// What the shim writes before Rust code runs.
#[repr(C)]
struct BootMap {
    entries: u32,
    /// 1 if the entry behind these is the region.
    has_region: u32,
    table: [Entry; 64],
}

/// An entry of PVH's memory map.
#[repr(C)]
struct Entry {
    start: u64,
    len: u64,
    kind: u32,
    reserved: u32,
}

const RAM: u32 = 1;

// SAFETY: shim.s defines it, with this layout.
unsafe extern "C" {
    safe static hotmem_boot_map: BootMap;
}

impl Entry {
    fn bytes(&self) -> Range<u64> {
        self.start..self.start + self.len
    }
}

/// RAM that was there at boot.
pub(crate) fn ram() -> impl Iterator<Item = Range<u64>> {
    let entries = &hotmem_boot_map.table[..hotmem_boot_map.entries as usize];
    entries.iter().filter(|entry| entry.kind == RAM).map(Entry::bytes)
}

/// The region of the virtio-mem device, empty if there is none. OSTD takes all of it for RAM.
pub(crate) fn region() -> Range<u64> {
    match hotmem_boot_map.has_region {
        0 => 0..0,
        _ => hotmem_boot_map.table[hotmem_boot_map.entries as usize].bytes(),
    }
}
