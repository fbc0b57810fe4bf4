//! Finds the processors in the tables of the MultiProcessor Specification 1.4, which virtual machine
//! monitors without ACPI provide.

use crate::loader_table::PhysicalMemory;
use core::ops::Range;

/// The places at which the specification (chapter 4) lets the pointer to the table be: the last KiB
/// of base memory, and the BIOS area. The firmware of virtual machines has no extended BIOS data
/// area elsewhere.
const SEARCHED: [Range<u64>; 2] = [0x9_fc00..0xa_0000, 0xf_0000..0x10_0000];
const POINTER_BYTES: usize = 16;
const HEADER_BYTES: usize = 44;
/// The type of a processor's entry, and the lengths of entries.
const PROCESSOR: u8 = 0;
const LAST_TYPE: u8 = 4;
const PROCESSOR_BYTES: usize = 20;
const OTHER_BYTES: usize = 8;
/// A bit of a processor's flags.
const ENABLED: u8 = 1;

/// Returns the IDs of the local APICs of the enabled processors, or `None` if there is no valid
/// table. The IDs end at the first entry of an unknown type or beyond the end of the table.
pub fn apic_ids<M: PhysicalMemory>(memory: &M) -> Option<impl Iterator<Item = u8> + use<'_, M>> {
    let mut entries = SEARCHED.into_iter().find_map(|area| entries(memory, area))?;
    let entry = core::iter::from_fn(move || {
        let len = match *entries.first()? {
            PROCESSOR => PROCESSOR_BYTES,
            1..=LAST_TYPE => OTHER_BYTES,
            _ => return None,
        };
        let (entry, rest) = entries.split_at_checked(len)?;
        entries = rest;
        Some(entry)
    });
    let processors = entry.filter(|entry| entry[0] == PROCESSOR);
    Some(processors.filter(|entry| entry[3] & ENABLED != 0).map(|entry| entry[1]))
}

/// Returns the entries of the first valid table to which a pointer in the area leads.
fn entries<M: PhysicalMemory>(memory: &M, area: Range<u64>) -> Option<&[u8]> {
    let bytes = memory.bytes(area.start, usize::try_from(area.end - area.start).ok()?)?;
    // The pointer is at a multiple of its length.
    let mut pointers = bytes.chunks_exact(POINTER_BYTES).filter(|raw| {
        let len = usize::from(raw[8]) * POINTER_BYTES;
        raw.starts_with(b"_MP_") && len == POINTER_BYTES && sum(raw) == 0
    });
    pointers.find_map(|raw| table_entries(memory, u32_at(raw, 4).into()))
}

fn table_entries(memory: &impl PhysicalMemory, phys_addr: u64) -> Option<&[u8]> {
    let header = memory.bytes(phys_addr, HEADER_BYTES)?;
    let len = usize::from(u16::from_le_bytes([header[4], header[5]]));
    let table = memory.bytes(phys_addr, len)?;
    let is_valid = table.starts_with(b"PCMP") && sum(table) == 0;
    table.get(HEADER_BYTES..).filter(|_| is_valid)
}

/// Returns the sum of all bytes, which is 0 in a valid structure.
fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, &byte| sum.wrapping_add(byte))
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}
