//! Checks the devices of the installed QEMU, by the protocol of its own tests (qtest), with which another
//! process accesses registers and memory of a machine whose processor is stopped.
//!
//! `cargo test -p hotmem-conformance --all-features --test qemu_devices`

mod machine;

use hotmem_conformance::runner::Suite;
use hotmem_conformance::{BALLOON_POINTS, MEMORY_POINTS, Point};
use machine::Machine;

/// QEMU chooses no address on this bus, so that the region has one that overlaps nothing.
const MEMORY: &[&str] = &[
    "-object",
    "memory-backend-ram,id=plug,size=128M,reserve=off",
    "-device",
    "virtio-mem,id=vmem0,memdev=plug,memaddr=0x10000000000,block-size=2M,requested-size=0",
];
const BALLOON: &[&str] = &[
    "-object",
    "iothread,id=hints",
    "-device",
    "virtio-balloon-device,id=balloon0,free-page-reporting=on,page-poison=on,free-page-hint=on,\
     iothread=hints",
];

fn check(points: &'static [Point], devices: &'static [&str], expected: &str) {
    let suite = Suite::new(points, || Machine::start(devices)).expecting(expected).unwrap();
    let report = suite.run();
    assert!(report.is_ok(), "{}", report.tap());
}

#[test]
fn the_memory_device_fails_only_the_points_that_are_known() {
    check(MEMORY_POINTS, MEMORY, include_str!("memory.txt"));
}

#[test]
fn the_balloon_fails_only_the_points_that_are_known() {
    check(BALLOON_POINTS, BALLOON, include_str!("balloon.txt"));
}
