//! Reads arbitrary properties and trees, and checks those that are not refused. The fuzz targets use
//! this file.

use crate::{
    common::{TableStorage, bytes},
    fdt::words,
};
use hotmem::Bytes;
use hotmem_dlpar::*;

/// The maximal number of LMBs that are compared one by one.
const MAX_COMPARED_LMBS: u32 = 1 << 14;

/// Reads these bytes as each kind of property. The first byte chooses the parameters.
pub(crate) fn property(script: &[u8]) {
    let Some((parameters, value)) = script.split_first() else { return };
    let form = if parameters & 1 == 0 { Affinity::Form0 } else { Affinity::Form1 };
    let version = if parameters & 2 == 0 { Version::V1 } else { Version::V2 };
    let numa = Numa::parse(value, form).unwrap_or(Numa::OFF);
    if let Ok(size) = LmbSize::parse(value) {
        assert!(size.bytes().0.is_power_of_two());
    }
    let size =
        LmbSize::new(Bytes(1 << (21 + (parameters >> 2) % 8))).expect("the size is a power of two");
    let lists = LookupArrays::parse(value).unwrap_or_default();
    if let Ok(memory) = DynamicMemory::parse(version, value, size) {
        check_table(&memory, &lists, numa);
    }
}

/// Reads these bytes as a flattened device tree.
pub(crate) fn tree(blob: &[u8]) {
    let words = words(blob);
    let Ok(tree) = Tree::parse(&words) else { return };
    // The memory nodes may be malformed. That does not affect the LMBs.
    let _ = tree.boot_memory(|range, _| assert!(range.start() <= range.end()));
    check_table(&tree.memory, &tree.arrays, tree.numa);
}

/// Makes a table of this memory, and compares it with the property.
fn check_table(memory: &DynamicMemory<'_>, lists: &LookupArrays<'_>, numa: Numa) {
    let size = memory.lmb_size().bytes().0;
    assert_eq!(memory.sets().count(), memory.set_count() as usize);
    assert_eq!(memory.sets().map(|set| set.lmbs).sum::<u32>(), memory.lmbs());
    assert!(memory.sets().all(|set| set.lmbs > 0 && set.address.is_multiple_of(size)));
    if memory.lmbs() > MAX_COMPARED_LMBS {
        return;
    }
    let mut buffers = TableStorage::of(memory, lists);
    let Ok(table) = Table::new(memory, lists, numa, buffers.storage()) else { return };
    let lmbs = single_lmbs(memory);
    assert_eq!(table.len() as usize, lmbs.len());
    for (lmb, set) in table.lmbs().zip(&lmbs) {
        assert_eq!(lmb.range.start().phys_addr(), set.address);
        assert_eq!((lmb.aa_index, lmb.flags), (set.aa_index, set.flags));
        assert_eq!(lmb.drc_index, set.has_connectors().then_some(DrcIndex(set.drc_index)));
        assert_eq!(table.by_address(set.address), Some(lmb));
    }
    let value = bytes(table.dynamic_memory());
    let written_back = DynamicMemory::parse(memory.version(), &value, memory.lmb_size());
    assert_eq!(single_lmbs(&written_back.expect("the written value is valid")), lmbs);
}

/// Returns each LMB as a set of one LMB, in the order of addresses.
fn single_lmbs(memory: &DynamicMemory<'_>) -> Vec<LmbSet> {
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
