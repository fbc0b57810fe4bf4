//! Drives the devices of the installed QEMU, by the protocol of its own tests (qtest), with which another
//! process accesses registers and memory of a machine whose processor is stopped.
//!
//! `cargo test -p hotmem-virtio --all-features --test qemu_devices`

// Tests run on 64-bit machines.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)]
#[path = "../other_devices/balloon_device.rs"]
mod balloon_device;
#[allow(dead_code)]
#[path = "../balloon/memory.rs"]
mod balloon_memory;
#[path = "../other_devices/bridge.rs"]
mod bridge;
#[path = "../../../hotmem-conformance/tests/qemu_devices/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../mem/memory.rs"]
mod memory;
#[path = "../other_devices/memory_device.rs"]
mod memory_device;
#[path = "../other_devices/random.rs"]
mod random;

use machine::Machine;
use memory_device as mem;

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
    "virtio-balloon-device,id=balloon0,free-page-reporting=on,free-page-hint=on,iothread=hints",
];

/// The machine does not map the region of a memory device on virtio-mmio, so that its contents are not
/// checked.
fn memory_device() -> mem::Case<Machine> {
    mem::Case::new(Machine::start(MEMORY), false)
}

fn balloon() -> Machine {
    Machine::start(BALLOON)
}

#[test]
fn a_memory_device_is_plugged_to_each_size() {
    mem::follows_each_size(memory_device());
}

#[test]
fn a_memory_device_is_driven_by_200_random_requests() {
    mem::follows_random_requests(memory_device(), 200);
}

#[test]
fn nothing_is_lost_if_a_memory_devices_driver_ends_at_any_step() {
    mem::survives_a_restart_after_each_step(memory_device);
}

#[test]
fn a_balloon_is_inflated_to_each_size() {
    balloon_device::follows_each_size(balloon());
}

#[test]
fn a_balloon_is_driven_by_200_random_requests() {
    balloon_device::follows_random_requests(balloon(), 200);
}

#[test]
fn all_memory_comes_back_if_a_balloons_driver_ends_at_any_step() {
    balloon_device::survives_a_restart_after_each_step(balloon);
}

#[test]
fn a_balloon_frees_reported_memory() {
    balloon_device::frees_reported_memory(balloon());
}
