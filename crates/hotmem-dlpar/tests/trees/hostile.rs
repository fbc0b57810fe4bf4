//! The harness of the fuzz targets: reads arbitrary properties and trees, and checks those that are
//! not refused.

use crate::{
    common::{TableStorage, bytes},
    fdt::words,
};
use hotmem::Bytes;
use hotmem_dlpar::*;

/// The maximal number of LMBs that are compared one by one.
const MOST_LMBS: u32 = 1 << 14;

/// Reads these bytes as each kind of property; the first byte chooses the parameters.
pub(crate) fn property(script: &[u8]) {
    let Some((how, value)) = script.split_first() else { return };
    let form = if how & 1 == 0 { Affinity::Form0 } else { Affinity::Form1 };
    let version = if how & 2 == 0 { Version::V1 } else { Version::V2 };
    let numa = Numa::parse(value, form).unwrap_or(Numa::OFF);
    if let Ok(size) = LmbSize::parse(value) {
        assert!(size.bytes().0.is_power_of_two());
    }
    let size = LmbSize::new(Bytes(1 << (21 + (how >> 2) % 8))).expect("a power of two");
    let lists = LookupArrays::parse(value).unwrap_or_default();
    if let Ok(memory) = DynamicMemory::parse(version, value, size) {
        machine(&memory, &lists, numa);
    }
}

/// Reads these bytes as a flattened device tree.
pub(crate) fn tree(blob: &[u8]) {
    let words = words(blob);
    let Ok(tree) = Tree::parse(&words) else { return };
    // The memory nodes may be malformed, which does not affect the LMBs.
    let _ = tree.boot_memory(|piece, _| assert!(piece.start() <= piece.end()));
    machine(&tree.memory, &tree.arrays, tree.numa);
}

fn machine(memory: &DynamicMemory<'_>, lists: &LookupArrays<'_>, numa: Numa) {
    let size = memory.lmb_size().bytes().0;
    assert_eq!(memory.sets().count(), memory.set_count() as usize);
    assert_eq!(memory.sets().map(|set| set.lmbs).sum::<u32>(), memory.lmbs());
    assert!(memory.sets().all(|set| set.lmbs > 0 && set.address.is_multiple_of(size)));
    if memory.lmbs() > MOST_LMBS {
        return;
    }
    let mut kept = TableStorage::of(memory, lists);
    let Ok(table) = Table::new(memory, lists, numa, kept.storage()) else { return };
    let lmbs = spread(memory);
    assert_eq!(table.len() as usize, lmbs.len());
    for (lmb, set) in table.lmbs().zip(&lmbs) {
        assert_eq!(lmb.range.start().phys_addr(), set.address);
        assert_eq!((lmb.aa_index, lmb.flags), (set.aa_index, set.flags));
        assert_eq!(lmb.drc_index, set.has_connectors().then_some(DrcIndex(set.drc_index)));
        assert_eq!(table.by_address(set.address), Some(lmb));
    }
    let value = bytes(table.dynamic_memory());
    let again = DynamicMemory::parse(memory.version(), &value, memory.lmb_size());
    assert_eq!(spread(&again.expect("what is written can be read")), lmbs);
}

/// Returns each LMB as a set of its own, by address.
fn spread(memory: &DynamicMemory<'_>) -> Vec<LmbSet> {
    let size = memory.lmb_size().bytes().0;
    let each = |set: LmbSet| {
        (0..set.lmbs).map(move |nth| LmbSet {
            lmbs: 1,
            address: set.address + u64::from(nth) * size,
            drc_index: if set.has_connectors() { set.drc_index + nth } else { set.drc_index },
            ..set
        })
    };
    let mut lmbs: Vec<_> = memory.sets().flat_map(each).collect();
    lmbs.sort_unstable_by_key(|lmb| lmb.address);
    lmbs
}
