//! Encodes properties of the device tree in a naive way.
#![allow(dead_code, reason = "each test uses a part of this module")]
#![allow(clippy::cast_possible_truncation, reason = "the tests truncate only values that fit")]

use hotmem::Bytes;
use hotmem_dlpar::*;

/// An LMB as version 1 of the property lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) index: u32,
    pub(crate) reserved: u32,
    pub(crate) aa_index: u32,
    pub(crate) flags: u32,
}

impl Entry {
    fn v1(&self) -> Vec<u8> {
        let [high, low] = [(self.address >> 32) as u32, self.address as u32];
        cells(&[high, low, self.index, self.reserved, self.aa_index, self.flags])
    }
}

pub(crate) fn cells(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
}

/// Encodes `ibm,dynamic-memory`.
pub(crate) fn v1(entries: &[Entry]) -> Vec<u8> {
    let mut property = cells(&[entries.len() as u32]);
    property.extend(entries.iter().flat_map(Entry::v1));
    property
}

/// Encodes `ibm,dynamic-memory-v2` with as few sets as possible.
pub(crate) fn v2(entries: &[Entry], size: u64) -> Vec<u8> {
    let mut sets: Vec<(u32, Entry)> = Vec::new();
    for entry in entries {
        if let Some((lmbs, first)) = sets.last_mut() {
            let step = if first.flags & FLAG_DRC_INVALID == 0 { *lmbs } else { 0 };
            let next = Entry {
                address: first.address + u64::from(*lmbs) * size,
                index: first.index.wrapping_add(step),
                ..*first
            };
            if next == *entry {
                *lmbs += 1;
                continue;
            }
        }
        sets.push((1, *entry));
    }
    let mut property = cells(&[sets.len() as u32]);
    for (lmbs, first) in sets {
        let [high, low] = [(first.address >> 32) as u32, first.address as u32];
        property.extend(cells(&[lmbs, high, low, first.index, first.aa_index, first.flags]));
    }
    property
}

/// Encodes `ibm,associativity-lookup-arrays`: a list of four entries for each node, the last of which
/// is the node.
pub(crate) fn arrays(nodes: &[u32]) -> Vec<u8> {
    let mut property = vec![nodes.len() as u32, 4];
    property.extend(nodes.iter().flat_map(|&node| [0, 0, 0, node]));
    cells(&property)
}

pub(crate) fn size(bytes: u64) -> LmbSize {
    LmbSize::new(Bytes(bytes)).expect("LMBs can have this size")
}

/// Owns the storage of a table.
pub(crate) struct TableStorage {
    groups: Vec<Group>,
    runs: Vec<Run>,
    by_index: Vec<u32>,
    arrays: Vec<u32>,
}

impl TableStorage {
    pub(crate) fn of(memory: &DynamicMemory<'_>, arrays: &LookupArrays<'_>) -> TableStorage {
        let needs = Needs::of(memory, arrays);
        TableStorage {
            groups: vec![Group::EMPTY; needs.groups],
            runs: vec![Run::EMPTY; needs.runs],
            by_index: vec![0; needs.runs],
            // The connectors may report new lists.
            arrays: vec![0; needs.arrays + 64],
        }
    }

    pub(crate) fn storage(&mut self) -> Storage<'_> {
        Storage {
            groups: &mut self.groups,
            runs: &mut self.runs,
            by_index: &mut self.by_index,
            arrays: &mut self.arrays,
        }
    }
}

/// Returns the bytes of a value.
pub(crate) fn bytes(value: PropertyValue<'_>) -> Vec<u8> {
    let mut out = vec![0xaa; value.len()];
    assert_eq!(value.copy_to(&mut out), out.len());
    out
}
