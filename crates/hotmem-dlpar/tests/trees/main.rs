//! Tests that large device trees are read, and that corrupted device trees are refused without a
//! panic.

#![allow(clippy::cast_possible_truncation, reason = "the tests truncate only values that fit")]

#[path = "../common/mod.rs"]
mod common;
mod fdt;
mod hostile;
mod partition;

use common::{TableStorage, arrays, bytes, cells};
use fdt::words;
use hotmem_dlpar::*;
use partition::partition;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The partition has 31 TiB in LMBs of 256 MiB. Each of its eight nodes has an eighth of the LMBs.
#[test]
fn a_version_2_tree_of_126_976_lmbs_is_read() {
    const LMBS: u32 = 126_976;
    const LMBS_OF_NODE: u32 = LMBS / 8;
    const FIRST_INDEX: u32 = 0x8000_0010;
    let lmb = 256 * MIB;
    let set = |node: u32| {
        let address = 4 * GIB + u64::from(node * LMBS_OF_NODE) * lmb;
        let flags = if node == 0 { FLAG_ASSIGNED } else { 0 };
        let index = FIRST_INDEX + node * LMBS_OF_NODE;
        [LMBS_OF_NODE, (address >> 32) as u32, address as u32, index, node, flags]
    };
    let memory = cells(&[vec![8], (0..8).flat_map(set).collect()].concat());
    let nodes: Vec<u32> = (0..8).collect();
    let blob = partition(Version::V2, &memory, lmb, &nodes);
    let words = words(&blob);
    let tree = Tree::parse(&words).expect("the tree is valid");
    assert_eq!((tree.memory.version(), tree.memory.lmbs()), (Version::V2, LMBS));
    assert_eq!((tree.memory.set_count(), tree.numa.primary_domain), (8, Some(4)));
    let mut boot = Vec::new();
    tree.boot_memory(|range, node| boot.push((range.bytes().0, node.0)))
        .expect("the value is valid");
    assert_eq!(boot, [(4 * GIB, 2)]);

    let mut buffers = TableStorage::of(&tree.memory, &tree.arrays);
    let table = Table::new(&tree.memory, &tree.arrays, tree.numa, buffers.storage());
    let table = table.expect("the table is valid");
    assert_eq!((table.len(), table.assigned_count()), (LMBS, LMBS_OF_NODE));
    assert_eq!(table.lmbs().count(), LMBS as usize);
    for (nth, found) in (0..).zip(table.lmbs()) {
        let address = 4 * GIB + u64::from(nth) * lmb;
        assert_eq!(found.range.start().phys_addr(), address);
        assert_eq!(found.node.unwrap().0, nth / LMBS_OF_NODE);
        assert_eq!(table.by_index(DrcIndex(FIRST_INDEX + nth)), Some(found));
        assert_eq!(table.by_address(address + lmb - 1), Some(found));
    }
    assert_eq!(table.by_index(DrcIndex(FIRST_INDEX + LMBS)), None);
    assert_eq!(table.by_address(4 * GIB + u64::from(LMBS) * lmb), None);
    assert_eq!(bytes(table.dynamic_memory()), memory);
    assert_eq!(bytes(table.lookup_arrays()), arrays(&nodes));
}

/// A change that corrupts a property or a tree.
#[derive(Clone, Debug)]
enum Corruption {
    /// Each index chooses a place.
    SetByte(prop::sample::Index, u8),
    SetCell(prop::sample::Index, u32),
    CopyCell(prop::sample::Index, prop::sample::Index),
    Truncate(prop::sample::Index),
}

impl Corruption {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.len() < 4 {
            return;
        }
        let cell = |place: &prop::sample::Index| place.index(bytes.len() / 4) * 4;
        match self {
            Corruption::SetByte(place, byte) => {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            Corruption::SetCell(place, value) => {
                let place = cell(place);
                bytes[place..place + 4].copy_from_slice(&value.to_be_bytes());
            }
            Corruption::CopyCell(from, to) => {
                let (from, to) = (cell(from), cell(to));
                bytes.copy_within(from..from + 4, to);
            }
            Corruption::Truncate(place) => bytes.truncate(place.index(bytes.len())),
        }
    }
}

fn corruptions() -> impl Strategy<Value = Vec<Corruption>> {
    let place = any::<prop::sample::Index>;
    let small = prop_oneof![0..10_u32, (0..32_u32).prop_map(|bit| 1 << bit), Just(u32::MAX)];
    let value = prop_oneof![small, any::<u32>()];
    let corruption = prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(place, byte)| Corruption::SetByte(place, byte)),
        8 => (place(), value).prop_map(|(place, value)| Corruption::SetCell(place, value)),
        4 => (place(), place()).prop_map(|(from, to)| Corruption::CopyCell(from, to)),
        1 => place().prop_map(Corruption::Truncate),
    ];
    prop::collection::vec(corruption, 0..5)
}

/// Returns a valid property with three consecutive LMBs, a separate LMB, and an LMB without a
/// connector.
fn valid_property(version: Version) -> Vec<u8> {
    let entry = |lmbs: u32, nth: u32, flags: u32| match version {
        Version::V1 => (0..lmbs)
            .flat_map(|more| [1, (nth + more) << 28, 0x8000_0000 + nth + more, 0, 1, flags])
            .collect(),
        Version::V2 => vec![lmbs, 1, nth << 28, 0x8000_0000 + nth, 1, flags],
    };
    let all = [entry(3, 0, 0), entry(1, 5, FLAG_ASSIGNED), entry(1, 7, FLAG_DRC_INVALID)].concat();
    cells(&[vec![(all.len() / 6) as u32], all].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_corrupted_property_causes_no_panic(parameters in any::<u8>(), corruptions in corruptions()) {
        for mut value in [valid_property(Version::V1), valid_property(Version::V2), arrays(&[0, 1, 2]), cells(&[4, 2])] {
            corruptions.iter().for_each(|corruption| corruption.apply(&mut value));
            hostile::property(&[&[parameters], &value[..]].concat());
        }
    }

    #[test]
    fn a_corrupted_tree_causes_no_panic(corruptions in corruptions()) {
        for version in [Version::V1, Version::V2] {
            let mut blob = partition(version, &valid_property(version), 256 * MIB, &[0, 1, 2]);
            corruptions.iter().for_each(|corruption| corruption.apply(&mut blob));
            hostile::tree(&blob);
        }
    }
}

/// Reads the input of the tests above without corruptions.
#[test]
fn valid_properties_and_trees_are_read() {
    for version in [Version::V1, Version::V2] {
        let blob = partition(version, &valid_property(version), 256 * MIB, &[0, 1, 2]);
        let words = words(&blob);
        let tree = Tree::parse(&words).expect("the tree is valid");
        assert_eq!((tree.memory.lmbs(), tree.memory.version()), (5, version));
        hostile::tree(&blob);
    }
}
