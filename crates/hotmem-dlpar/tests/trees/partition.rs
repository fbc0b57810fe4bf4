//! Makes the device tree of a partition.

use crate::{
    common::{arrays, cells},
    fdt::{Node, flatten},
};
use hotmem_dlpar::Version;

const GIB: u64 = 1 << 30;

/// Returns the device tree of a partition with these LMBs and with 4 GiB of boot memory on node 2.
pub(crate) fn partition(version: Version, memory: &[u8], lmb: u64, nodes: &[u32]) -> Vec<u8> {
    let pair = |value: u64| [(value >> 32) as u32, value as u32];
    let reg = cells(&[pair(0), pair(4 * GIB)].concat());
    let (size, lists) = (cells(&pair(lmb)), arrays(nodes));
    let points = cells(&[4, 2]);
    let associativity = cells(&[4, 0, 0, 0, 2]);
    let mut vec5 = [0; 25];
    (vec5[0], vec5[5]) = (24, 0x80);
    let dynamic: [(&str, &[u8]); 3] = [
        ("ibm,lmb-size", &size),
        (version.property().name(), memory),
        ("ibm,associativity-lookup-arrays", &lists),
    ];
    let root = [
        Node("chosen", &[("ibm,architecture-vec-5", &vec5)], &[]),
        Node(
            "memory@0",
            &[("device_type", b"memory\0"), ("reg", &reg), ("ibm,associativity", &associativity)],
            &[],
        ),
        Node("rtas", &[("ibm,associativity-reference-points", &points)], &[]),
        Node("ibm,dynamic-reconfiguration-memory", &dynamic, &[]),
    ];
    flatten(&Node("", &[("compatible", b"qemu,pseries\0")], &root))
}
