//! Tests of guests with a descriptor of 64 bytes for each frame of RAM. A guest checks some
//! descriptors after each resize, and all descriptors at its end.

use crate::support::{config, random_resizes, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Vm};

/// Returns a machine with 128 MiB of boot memory whose guest has descriptors of its RAM.
fn config_with_descriptors(device_memory: Bytes) -> Config {
    config(device_memory).with_guest_option("descriptors", 64)
}

#[test]
fn plugged_memory_contains_its_own_descriptors_and_is_unplugged_with_them() {
    let size = Bytes::gib(8);
    let mut vm = start(
        &config_with_descriptors(size)
            .with_touched_memory(Bytes::mib(64))
            .with_guest_option("exit", "resizes:4"),
    );
    for target in [size, Bytes::ZERO, size] {
        vm.resize_checked(target);
        let written = |event: &Event| match *event {
            Event::Metadata { written } => Some(written),
            _ => None,
        };
        if target != Bytes::ZERO {
            let (written, _) = vm.wait("metadata", written).unwrap();
            // The guest also writes descriptors of boot memory, page tables and the engine's words.
            let min = target.0 / 64;
            assert!((min..min + (4 << 20)).contains(&written), "{written} for {target}");
        }
    }
    vm.finish(Bytes::ZERO);
}

#[test]
fn memory_with_descriptors_comes_online_under_every_policy() {
    let size = Bytes::gib(1);
    for online in ["offline", "online", "online_kernel"] {
        let config = config_with_descriptors(size)
            .with_guest_option("online", online)
            .with_guest_option("exit", "resizes:3");
        let mut vm = start(&config);
        vm.resize(size).unwrap();
        vm.resize(Bytes::mib(100)).unwrap();
        assert_eq!(vm.device_size().unwrap(), Bytes::mib(100));
        vm.finish(Bytes::ZERO);
    }
}

#[test]
fn used_memory_is_migrated_and_its_descriptors_stay_correct() {
    let config = config_with_descriptors(Bytes::gib(2))
        .with_touched_memory(Bytes::mib(64))
        .with_guest_option("release", "off");
    let mut vm = start(&config.with_guest_option("exit", "size:256M"));
    vm.resize_checked(Bytes::gib(2));
    vm.wait("touching", |event| matches!(event, Event::Touched { .. }).then_some(())).unwrap();
    vm.resize_checked(Bytes::gib(1));
    vm.finish(Bytes::mib(256));
}

#[test]
fn device_memory_that_becomes_ram_gets_descriptors_of_ram() {
    let nvdimms = vec![Bytes::gib(1), Bytes::mib(162)];
    let config = config_with_descriptors(Bytes::ZERO)
        .with_touched_memory(Bytes::mib(16))
        .with_guest_option("exit", "nvdimm");
    let config = config.with_guest_option("nvdimm", "system_ram").with_guest_option("rebinds", 2);
    let vm = Vm::start(&Config { nvdimms, ..config }).unwrap();
    vm.finish().unwrap();
}

#[test]
fn forty_random_resizes_with_descriptors_reach_their_targets() {
    random_resizes(0x64, 40, 1024, |size| {
        config_with_descriptors(size).with_touched_memory(Bytes::mib(16))
    });
}
