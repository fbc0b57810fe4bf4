//! Reads a partition's flattened device tree that the fuzzer corrupts, or arbitrary bytes.
//!
//! The ordinary tests run the same harness with corrupted trees.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/trees/fdt.rs"]
mod fdt;
#[path = "../../tests/trees/hostile.rs"]
mod hostile;
#[path = "../../tests/trees/partition.rs"]
mod partition;

use hotmem_dlpar::Version;

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    hostile::tree(script);
    let Some((&parameters, script)) = script.split_first() else { return };
    let version = if parameters & 1 == 0 { Version::V1 } else { Version::V2 };
    // The first bytes are the property. The others corrupt the tree: each group of six bytes gives the
    // place and the value of a cell.
    let (memory, corruptions) = script.split_at(script.len().min(4 + usize::from(parameters >> 1) * 24));
    let mut blob = partition::partition(version, memory, 256 << 20, &[0, 1, 2]);
    for corruption in corruptions.as_chunks::<6>().0 {
        let [high, low, cell @ ..] = *corruption;
        let offset = usize::from(u16::from_be_bytes([high, low])) % (blob.len() / 4) * 4;
        blob[offset..offset + 4].copy_from_slice(&cell);
    }
    hostile::tree(&blob);
});
