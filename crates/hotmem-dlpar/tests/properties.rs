//! Tests that valid properties are read and written back unchanged, and that invalid properties are
//! refused.

#![allow(clippy::cast_possible_truncation, reason = "the tests truncate only values that fit")]

mod common;

use common::{Entry, TableStorage, arrays, bytes, cells, size, v1, v2};
use hotmem::NodeId;
use hotmem_dlpar::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Makes a table from a property of this version, and checks all look-ups in the table.
fn check_table(entries: &[Entry], version: Version, lmb: u64, nodes: &[u32], numa: Numa) {
    let value = match version {
        Version::V1 => v1(entries),
        Version::V2 => v2(entries, lmb),
    };
    let memory = DynamicMemory::parse(version, &value, size(lmb)).expect("the property is valid");
    let lists = arrays(nodes);
    let lists = LookupArrays::parse(&lists).expect("the lists are valid");
    let mut buffers = TableStorage::of(&memory, &lists);
    let table = Table::new(&memory, &lists, numa, buffers.storage()).expect("the table is valid");
    assert_eq!(table.len() as usize, entries.len());
    assert_eq!(bytes(table.dynamic_memory()), value);
    assert_eq!(bytes(table.lookup_arrays()), arrays(nodes));
    for (entry, lmb) in entries.iter().zip(table.lmbs()) {
        let has_connector = entry.flags & FLAG_DRC_INVALID == 0;
        assert_eq!(lmb.range.start().phys_addr(), entry.address);
        assert_eq!(lmb.drc_index, has_connector.then_some(DrcIndex(entry.index)));
        assert_eq!((lmb.aa_index, lmb.flags), (entry.aa_index, entry.flags));
        assert_eq!(lmb.node, naive_node(entry, nodes, numa));
        if has_connector {
            assert_eq!(table.by_index(DrcIndex(entry.index)), Some(lmb));
        }
        let last = lmb.range.end().phys_addr() - 1;
        assert_eq!(table.by_address(entry.address), Some(lmb));
        assert_eq!(table.by_address(last), Some(lmb));
        assert_eq!(table.node_at(last), lmb.node);
    }
    for index in [0, 1 << 31, u32::MAX] {
        let known = entries.iter().any(|e| e.index == index && e.flags & FLAG_DRC_INVALID == 0);
        assert_eq!(table.by_index(DrcIndex(index)).is_some(), known);
    }
    for entry in entries {
        for outside in [entry.address.wrapping_sub(1), entry.address + lmb] {
            let within = |e: &Entry| e.address <= outside && outside - e.address < lmb;
            assert_eq!(table.by_address(outside).is_some(), entries.iter().any(within));
        }
    }
    let assigned = entries.iter().filter(|entry| entry.flags & FLAG_ASSIGNED != 0).count();
    assert_eq!(table.assigned_count() as usize, assigned);
    let is_removable = |e: &&Entry| e.flags & (FLAG_RESERVED | FLAG_DRC_INVALID) == 0;
    let naive = entries.iter().filter(is_removable).filter(|e| e.flags & FLAG_ASSIGNED != 0);
    let runs = table.assigned().flat_map(|(range, node)| {
        range.chunks(lmb / 4096).map(move |chunk| (chunk.start().phys_addr(), node))
    });
    assert!(
        runs.eq(naive.map(|e| (e.address, naive_node(e, nodes, numa).unwrap_or(NodeId::ZERO))))
    );
}

/// Returns the node of an LMB by the rules of Linux's `of_drconf_to_nid_single`, or `None` if these
/// rules find no node.
fn naive_node(entry: &Entry, nodes: &[u32], numa: Numa) -> Option<NodeId> {
    let index = numa.primary_domain?;
    if index > 4 || entry.flags & FLAG_AI_INVALID != 0 || entry.aa_index as usize >= nodes.len() {
        return None;
    }
    let list = [0, 0, 0, nodes[entry.aa_index as usize]];
    let node = list[index as usize - 1];
    if node == 0xffff {
        return None;
    }
    Some(NodeId(node))
}

fn entries() -> impl Strategy<Value = (u64, Vec<Entry>)> {
    let flags = prop_oneof![
        4 => Just(0_u32),
        4 => Just(FLAG_ASSIGNED),
        1 => Just(FLAG_RESERVED),
        1 => Just(FLAG_AI_INVALID),
        1 => Just(FLAG_RESERVED | FLAG_DRC_INVALID),
        1 => Just(FLAG_ASSIGNED | FLAG_AI_INVALID | 0x100),
    ];
    let aa_index = prop_oneof![4 => 0..3_u32, 1 => Just(u32::MAX)];
    // A run of LMBs: their number, the distance from the previous run, and their fields.
    let run = (1..90_u32, 0..3_u64, 0..3_u32, aa_index, flags);
    let sizes = prop_oneof![Just(16 * MIB), Just(256 * MIB), Just(2 * MIB)];
    (sizes, prop::collection::vec(run, 0..12)).prop_map(|(lmb, runs)| {
        let (mut address, mut index) = (GIB, 0x8000_0000_u32);
        let mut entries = Vec::new();
        for (lmbs, gap, skip, aa_index, flags) in runs {
            address += gap * lmb;
            index += skip;
            for _ in 0..lmbs {
                let has_connector = flags & FLAG_DRC_INVALID == 0;
                let drc_index = if has_connector { index } else { 0 };
                entries.push(Entry { address, index: drc_index, reserved: 0, aa_index, flags });
                address += lmb;
                index += u32::from(has_connector);
            }
        }
        (lmb, entries)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn properties_of_both_versions_are_read_and_written_back_unchanged(
        (lmb, entries) in entries(),
        nodes in prop::collection::vec(prop_oneof![0..40_u32, Just(0xffff), any::<u32>()], 0..4),
        primary_domain in prop::option::of(prop_oneof![Just(4), 1..6_u32]),
    ) {
        let numa = Numa { primary_domain };
        for version in [Version::V1, Version::V2] {
            check_table(&entries, version, lmb, &nodes, numa);
        }
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(
        value in prop::collection::vec(any::<u8>(), 0..200),
        count in prop::option::of(0..9_u32),
        lmb in any::<u64>(),
    ) {
        let mut value = value;
        if let (Some(count), Some(first)) = (count, value.first_chunk_mut::<4>()) {
            *first = count.to_be_bytes();
        }
        let _ = LmbSize::parse(&value);
        let _ = Numa::parse(&value, Affinity::Form0);
        let lists = LookupArrays::parse(&value).unwrap_or_default();
        let size = LmbSize::new(hotmem::Bytes(lmb)).unwrap_or(size(16 * MIB));
        for version in [Version::V1, Version::V2] {
            let Ok(memory) = DynamicMemory::parse(version, &value, size) else { continue };
            if memory.lmbs() < 10_000 {
                let mut buffers = TableStorage::of(&memory, &lists);
                let table = Table::new(&memory, &lists, Numa::OFF, buffers.storage());
                if let Ok(table) = table {
                    let written_back = bytes(table.dynamic_memory());
                    prop_assert!(DynamicMemory::parse(version, &written_back, size).is_ok());
                }
            }
        }
    }

    #[test]
    fn lmbs_in_any_order_are_read_and_written_by_address((lmb, entries) in entries(), seed in any::<u64>()) {
        let mut shuffled = entries.clone();
        let mut state = seed | 1;
        for last in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(last, (state >> 33) as usize % (last + 1));
        }
        let none = LookupArrays::default();
        for (version, value) in [
            (Version::V1, v1(&shuffled)),
            (Version::V2, v2(&shuffled, lmb)),
        ] {
            let memory = DynamicMemory::parse(version, &value, size(lmb)).expect("the value is valid");
            let mut buffers = TableStorage::of(&memory, &none);
            let table = Table::new(&memory, &none, Numa::OFF, buffers.storage()).expect("the value is valid");
            let sorted = if version == Version::V1 { v1(&entries) } else { v2(&entries, lmb) };
            prop_assert_eq!(bytes(table.dynamic_memory()), sorted);
        }
    }
}

fn entry(address: u64, index: u32) -> Entry {
    Entry { address, index, reserved: 0, aa_index: 0, flags: 0 }
}

#[test]
fn the_reserved_word_is_written_back_unchanged() {
    let mut entries = [entry(0, 1), entry(256 * MIB, 2), entry(512 * MIB, 3)];
    entries[1].reserved = 0xdead;
    check_table(&entries, Version::V1, 256 * MIB, &[0], Numa::OFF);
}

/// Returns the error of a property that must be refused.
fn property_error(value: &[u8], version: Version, lmb: u64) -> PropertyError {
    let memory = match DynamicMemory::parse(version, value, size(lmb)) {
        Err(error) => return error,
        Ok(memory) => memory,
    };
    let none = LookupArrays::default();
    let mut buffers = TableStorage::of(&memory, &none);
    match Table::new(&memory, &none, Numa::OFF, buffers.storage()) {
        Err(TableError::Property(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn malformed_properties_are_refused_with_an_error() {
    use PropertyError::*;
    let big = 256 * MIB;
    let property = Property::DynamicMemory;
    let two_lmbs = v1(&[entry(0, 1), entry(big, 2)]);
    for len in 0..two_lmbs.len() {
        let declared = if len < 4 { 4 } else { 52 };
        let expected = Truncated { property, declared, len: len as u64 };
        assert_eq!(property_error(&two_lmbs[..len], Version::V1, big), expected);
    }
    let mut long = two_lmbs.clone();
    long.push(0);
    assert_eq!(
        property_error(&long, Version::V1, big),
        Oversized { property, declared: 52, len: 53 }
    );
    let huge = cells(&[u32::MAX, 0, 0]);
    let declared = 4 + u64::from(u32::MAX) * 24;
    assert_eq!(property_error(&huge, Version::V1, big), Truncated { property, declared, len: 12 });

    let set = |lmbs: u32, address: u64, index: u32| {
        cells(&[1, lmbs, (address >> 32) as u32, address as u32, index, 0, 0])
    };
    let v2_error = |value: &[u8]| property_error(value, Version::V2, big);
    assert_eq!(v2_error(&set(0, big, 1)), EmptySet { address: big });
    assert_eq!(v2_error(&set(1, MIB, 1)), Unaligned { address: MIB });
    let last = (1 << 52) - big;
    assert_eq!(v2_error(&set(2, last, 1)), BeyondPhysicalLimit { address: last, lmbs: 2 });
    let wrapping = !(big - 1);
    assert_eq!(v2_error(&set(2, wrapping, 1)), BeyondPhysicalLimit { address: wrapping, lmbs: 2 });
    let overflow = IndexOverflow { first: DrcIndex(u32::MAX), lmbs: 2 };
    assert_eq!(v2_error(&set(2, 0, u32::MAX)), overflow);
    let too_many_lmbs = cells(&[2, 1 << 31, 0, 0, 0, 0, 0x20, 1 << 31, 0, 0, 0, 0, 0x20]);
    assert_eq!(property_error(&too_many_lmbs, Version::V2, 2 * MIB), TooManyLmbs);

    let same_address = v1(&[entry(big, 1), entry(big, 2)]);
    assert_eq!(property_error(&same_address, Version::V1, big), Overlap { address: big });
    let overlapping_sets = cells(&[2, 4, 0, 0, 1, 0, 0, 4, 0, 3 << 28, 9, 0, 0]);
    assert_eq!(v2_error(&overlapping_sets), Overlap { address: 3 * big });
    let same_index = v1(&[entry(0, 5), entry(4 * big, 5)]);
    assert_eq!(property_error(&same_index, Version::V1, big), DuplicateIndex(DrcIndex(5)));
    let common_index = cells(&[2, 4, 0, 0, 7, 0, 0, 4, 1, 0, 10, 0, 0]);
    assert_eq!(v2_error(&common_index), DuplicateIndex(DrcIndex(10)));
}

#[test]
fn malformed_sizes_and_arrays_are_refused_with_an_error() {
    for bad in [0, 1, 3 * MIB, MIB, 48 * MIB, 1 << 52, 1 << 63, u64::MAX] {
        let value = cells(&[(bad >> 32) as u32, bad as u32]);
        assert_eq!(LmbSize::parse(&value), Err(PropertyError::LmbSize(bad)));
    }
    assert_eq!(LmbSize::parse(&cells(&[1 << 28])).map(|size| size.bytes().0), Ok(1 << 28));
    let property = Property::LmbSize;
    let short = PropertyError::Truncated { property, declared: 8, len: 3 };
    assert_eq!(LmbSize::parse(&[0; 3]), Err(short));
    let long = PropertyError::Oversized { property, declared: 8, len: 12 };
    assert_eq!(LmbSize::parse(&[0; 12]), Err(long));

    let property = Property::LookupArrays;
    let good = arrays(&[0, 1]);
    for len in 0..good.len() {
        let error = LookupArrays::parse(&good[..len]).expect_err("the value is too short");
        assert!(matches!(error, PropertyError::Truncated { property: p, .. } if p == property));
    }
    let longer = [&good[..], &[0]].concat();
    let long = PropertyError::Oversized { property, declared: 40, len: 41 };
    assert_eq!(LookupArrays::parse(&longer), Err(long));
    let declared = u64::MAX;
    let huge = PropertyError::Truncated { property, declared, len: 8 };
    assert_eq!(LookupArrays::parse(&cells(&[u32::MAX; 2])), Err(huge));

    assert!(Numa::parse(&[0; 5], Affinity::Form1).is_err());
    let points = cells(&[4, 2]);
    let primary = |value: &[u8], form| Numa::parse(value, form).map(|numa| numa.primary_domain);
    assert_eq!(primary(&points, Affinity::Form1), Ok(Some(4)));
    assert_eq!(primary(&points, Affinity::Form0), Ok(Some(2)));
    assert_eq!(primary(&points[..4], Affinity::Form0), Ok(None));
    assert_eq!(primary(&cells(&[0]), Affinity::Form1), Ok(None));
    assert_eq!(primary(&[], Affinity::Form1), Ok(None));
}

#[test]
fn storage_that_is_too_short_is_refused() {
    let value = v1(&[entry(0, 1), entry(512 * MIB, 2)]);
    let memory =
        DynamicMemory::parse(Version::V1, &value, size(256 * MIB)).expect("the value is valid");
    let lists = arrays(&[0]);
    let lists = LookupArrays::parse(&lists).expect("the value is valid");
    let needs = Needs::of(&memory, &lists);
    assert_eq!(needs, Needs { groups: 1, runs: 2, arrays: 4 });
    for missing in 0..4 {
        let (mut groups, mut runs) = (vec![Group::EMPTY; 1], vec![Run::EMPTY; 2]);
        let (mut by_index, mut arrays) = (vec![0; 2], vec![0; 4]);
        match missing {
            0 => groups.clear(),
            1 => runs.truncate(1),
            2 => by_index.truncate(1),
            _ => arrays.truncate(3),
        }
        let (groups, runs) = (&mut groups[..], &mut runs[..]);
        let storage = Storage { groups, runs, by_index: &mut by_index, arrays: &mut arrays };
        let table = Table::new(&memory, &lists, Numa::OFF, storage);
        assert_eq!(table.map(|table| table.len()), Err(TableError::Storage(needs)));
    }
}

#[test]
fn a_set_of_a_million_lmbs_is_read() {
    let value = cells(&[1, 1_000_000, 0, 0, 0x8000_0000, 0, FLAG_ASSIGNED]);
    let memory =
        DynamicMemory::parse(Version::V2, &value, size(256 * MIB)).expect("the value is valid");
    let none = LookupArrays::default();
    let mut buffers = TableStorage::of(&memory, &none);
    let table =
        Table::new(&memory, &none, Numa::OFF, buffers.storage()).expect("the value is valid");
    assert_eq!((table.len(), table.assigned_count()), (1_000_000, 1_000_000));
    assert_eq!(bytes(table.dynamic_memory()), value);
    let last =
        table.by_index(DrcIndex(0x8000_0000 + 999_999)).expect("the last LMB has a connector");
    assert_eq!(table.by_address(last.range.start().phys_addr()), Some(last));
    assert_eq!(table.assigned().count(), 1);
}
