//! Reads a device tree that the fuzzer makes.
#![no_main]

use hotmem_guest::device_tree::{DeviceTree, EarlyDevices};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (chunks, _) = bytes.as_chunks();
    let words: Vec<u64> = chunks.iter().map(|&chunk| u64::from_ne_bytes(chunk)).collect();
    let _ = EarlyDevices::find(&words);
    if let Ok(tree) = DeviceTree::read(&words, 0) {
        let ranges = tree.ram.iter().chain(&*tree.in_use).chain(&*tree.not_mapped);
        assert!(ranges.copied().all(|range| range.start.checked_add(range.len).is_some()));
    }
});
