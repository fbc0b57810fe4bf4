//! Reads the boot memory map that `shim.s` has copied, and the region of the virtio-mem device that
//! `shim.s` has appended to the map.

use core::arch::global_asm;
use core::ops::Range;

global_asm!(include_str!("shim.s"));

/// The structure that `shim.s` writes before Rust code runs.
#[repr(C)]
struct BootMap {
    entries: u32,
    /// 1 if one more entry follows, which is the region of the virtio-mem device, and 0 otherwise.
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

// SAFETY: shim.s defines `hotmem_boot_map` with the layout of `BootMap`, and nothing writes to it
// after Rust code has started.
unsafe extern "C" {
    safe static hotmem_boot_map: BootMap;
}

impl Entry {
    fn bytes(&self) -> Range<u64> {
        self.start..self.start + self.len
    }
}

/// Returns the ranges of boot RAM.
pub(crate) fn ram() -> impl Iterator<Item = Range<u64>> {
    let entries = &hotmem_boot_map.table[..hotmem_boot_map.entries as usize];
    entries.iter().filter(|entry| entry.kind == RAM).map(Entry::bytes)
}

/// Returns the region of the virtio-mem device, which is empty if there is no device. OSTD treats
/// all of it as RAM.
pub(crate) fn region() -> Range<u64> {
    match hotmem_boot_map.has_region {
        0 => 0..0,
        _ => hotmem_boot_map.table[hotmem_boot_map.entries as usize].bytes(),
    }
}
