//! Tests of guests that keep a descriptor of 64 bytes for each frame of their RAM. The guests check
//! some descriptors after each resize, and all at the end.

use crate::support::{config, random_resizes, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Vm};

/// Returns a machine of 128 MiB whose guest keeps descriptors of its RAM.
fn describing(device_memory: Bytes) -> Config {
    config(device_memory).with("descriptors", 64)
}

#[test]
fn plugged_memory_holds_its_own_descriptors_and_is_unplugged_with_them() {
    let size = Bytes::gib(8);
    let mut vm = start(&describing(size).touching(Bytes::mib(64)).with("exit", "resizes:4"));
    for target in [size, Bytes::ZERO, size] {
        vm.resize_checked(target);
        let written = |event: &Event| match *event {
            Event::Metadata { written } => Some(written),
            _ => None,
        };
        if target != Bytes::ZERO {
            let (written, _) = vm.wait("metadata", written).unwrap();
            // The guest also writes descriptors of boot memory, page tables and the engine's words.
            let least = target.0 / 64;
            assert!((least..least + (4 << 20)).contains(&written), "{written} for {target}");
        }
    }
    vm.finish(Bytes::ZERO);
}

#[test]
fn described_memory_comes_online_under_every_policy() {
    let size = Bytes::gib(1);
    for online in ["offline", "online", "online_kernel"] {
        let config = describing(size).with("online", online).with("exit", "resizes:3");
        let mut vm = start(&config);
        vm.resize(size).unwrap();
        vm.resize(Bytes::mib(100)).unwrap();
        assert_eq!(vm.device_size().unwrap(), Bytes::mib(100));
        vm.finish(Bytes::ZERO);
    }
}

#[test]
fn migration_does_not_move_descriptors() {
    let config = describing(Bytes::gib(2)).touching(Bytes::mib(64)).with("release", "off");
    let mut vm = start(&config.with("exit", "size:256M"));
    vm.resize_checked(Bytes::gib(2));
    vm.wait("touching", |event| matches!(event, Event::Touched { .. }).then_some(())).unwrap();
    vm.resize_checked(Bytes::gib(1));
    vm.finish(Bytes::mib(256));
}

#[test]
fn a_device_that_becomes_ram_is_described_as_ram() {
    let nvdimms = vec![Bytes::gib(1), Bytes::mib(162)];
    let config = describing(Bytes::ZERO).touching(Bytes::mib(16)).with("exit", "nvdimm");
    let config = config.with("nvdimm", "system_ram").with("rebinds", 2);
    let vm = Vm::start(&Config { nvdimms, ..config }).unwrap();
    vm.finish().unwrap();
}

#[test]
fn forty_random_resizes_by_pageblocks() {
    random_resizes(0x64, 40, 1024, |size| describing(size).touching(Bytes::mib(16)));
}
