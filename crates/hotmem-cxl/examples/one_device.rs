//! Reads a CEDT with one host bridge and one window, and lists what it describes.

use hotmem_addr::{Bytes, PfnRange};
use hotmem_cxl::{Platform, cedt};

fn table() -> Vec<u8> {
    let mut table = vec![0, 0, 32, 0];
    table.extend([12u32, 1, 0].map(u32::to_le_bytes).concat());
    table.extend([0x4_e000_0000u64, 0x1_0000].map(u64::to_le_bytes).concat());
    table.extend([1, 0, 40, 0, 0, 0, 0, 0]);
    table.extend([0x4_f000_0000u64, 4 << 30].map(u64::to_le_bytes).concat());
    table.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xf, 0, 0, 0, 12, 0, 0, 0]);
    table
}

fn main() {
    let ram = PfnRange::from_bytes(0, Bytes::gib(1)).expect("1 GiB is a range");
    let mut platform = Platform::<4>::default();
    for structure in cedt::structures(&table()) {
        let structure = structure.expect("the table is well-formed");
        platform.add(structure, &[ram]).expect("nothing overlaps");
    }
    for window in platform.windows() {
        println!("{} is routed to bridges {:?}", window.range, window.targets());
        assert!(window.targets().iter().all(|&uid| platform.bridge(uid).is_some()));
    }
}

#[test]
fn a_window_is_listed() {
    main();
}
