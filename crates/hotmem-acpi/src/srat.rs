//! Reads the System Resource Affinity Table, which assigns memory to NUMA nodes.

use crate::fields::{u32_at, u64_at};
use hotmem_addr::Bytes;

/// A range of memory and its proximity domain (ACPI 6.5, 5.2.16.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAffinity {
    /// The first physical address.
    pub start: u64,
    /// The size of the range. Firmware may give any size, so `start` + `len` may wrap.
    pub len: Bytes,
    /// The proximity domain: the node's number.
    pub domain: u32,
    /// Whether memory can be hot-plugged in the range. The range may have no memory at present, and
    /// the memory that comes may be on another node.
    pub hot_pluggable: bool,
}

const MEMORY: u8 = 1;
const MEMORY_BYTES: usize = 40;
const ENABLED: u32 = 1 << 0;
const HOT_PLUGGABLE: u32 = 1 << 1;
const NON_VOLATILE: u32 = 1 << 2;

/// Returns the ranges of RAM in the table's structures, which begin at offset 48. Ends at the first
/// structure that does not fit in the table.
pub fn memory_affinities(structures: &[u8]) -> impl Iterator<Item = MemoryAffinity> {
    let mut remaining = structures;
    let each = core::iter::from_fn(move || {
        let length = usize::from(*remaining.get(1)?);
        let (structure, rest) = remaining.split_at_checked(length).filter(|_| length >= 2)?;
        remaining = rest;
        Some(structure)
    });
    each.filter_map(memory_affinity)
}

/// Returns the range of a structure, or `None` if the structure does not describe RAM.
fn memory_affinity(structure: &[u8]) -> Option<MemoryAffinity> {
    if *structure.first()? != MEMORY || structure.len() < MEMORY_BYTES {
        return None;
    }
    let flags = u32_at(structure, 28)?;
    if flags & ENABLED == 0 || flags & NON_VOLATILE != 0 {
        return None;
    }
    Some(MemoryAffinity {
        start: u64_at(structure, 8)?,
        len: Bytes(u64_at(structure, 16)?),
        domain: u32_at(structure, 2)?,
        hot_pluggable: flags & HOT_PLUGGABLE != 0,
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    fn memory(domain: u32, start: u64, len: u64, flags: u32) -> Vec<u8> {
        let mut raw = vec![MEMORY, 40];
        raw.extend(domain.to_le_bytes());
        raw.extend([0; 2]);
        raw.extend(start.to_le_bytes());
        raw.extend(len.to_le_bytes());
        raw.extend([0; 4]);
        raw.extend(flags.to_le_bytes());
        raw.extend([0; 8]);
        raw
    }

    #[test]
    fn only_ram_is_listed() {
        let cpu = [0, 16].into_iter().chain([7; 14]).collect();
        let table: Vec<Vec<u8>> = vec![
            memory(1, 0x10_0000, 0x3f0_0000, ENABLED),
            cpu,
            memory(2, 0, 0x1000, 0),
            memory(3, 0, 0x1000, ENABLED | NON_VOLATILE),
            memory(0x0102_0304, 1 << 40, 1 << 41, ENABLED | HOT_PLUGGABLE),
        ];
        let found: Vec<_> = memory_affinities(&table.concat()).collect();
        let ram = |domain, start, len, hot_pluggable| MemoryAffinity {
            start,
            len: Bytes(len),
            domain,
            hot_pluggable,
        };
        assert_eq!(
            found,
            [ram(1, 0x10_0000, 0x3f0_0000, false), ram(0x0102_0304, 1 << 40, 1 << 41, true)]
        );
    }

    #[test]
    fn a_truncated_structure_ends_the_table() {
        let good = memory(1, 0, 0x1000, ENABLED);
        for truncated in [vec![], vec![MEMORY], vec![MEMORY, 0], vec![MEMORY, 1], vec![9, 200, 0]] {
            let table = [good.clone(), truncated, good.clone()].concat();
            // Only the first structure is certain: the bytes after it may or may not look like
            // another one.
            assert_eq!(memory_affinities(&table).next().map(|found| found.domain), Some(1));
        }
        let short = [&[MEMORY, 39][..], &good[2..39]].concat();
        assert_eq!(memory_affinities(&short).count(), 0);
        assert_eq!(memory_affinities(&good[..39]).count(), 0);
    }
}
