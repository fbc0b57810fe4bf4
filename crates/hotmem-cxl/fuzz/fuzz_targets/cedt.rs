//! Reads arbitrary bytes as the structures of a CEDT, and collects them.
#![no_main]

use hotmem_addr::{Bytes, PfnRange};
use hotmem_cxl::{Platform, cedt};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let ram = PfnRange::from_bytes(0, Bytes::gib(1)).expect("1 GiB is a range");
    let mut platform = Platform::<8>::default();
    let mut count = 0;
    for structure in cedt::structures(bytes) {
        count += 1;
        if let Ok(structure) = structure {
            let _ = platform.add(structure, &[ram]);
        }
    }
    assert!(count <= bytes.len() / 4 + 1);
    let registers = platform.bridges().map(|bridge| bridge.registers);
    let ranges: Vec<_> = platform.windows().map(|window| window.range).chain(registers).collect();
    for (n, range) in ranges.iter().enumerate() {
        assert!(!range.overlaps(ram));
        assert!(ranges[..n].iter().all(|other| !other.overlaps(*range)));
    }
});
