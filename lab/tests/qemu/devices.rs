//! Tests with several virtio-mem devices on several nodes.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::Config;

#[test]
fn two_devices_are_resized_on_nodes_without_cpus_or_boot_memory() {
    // A section has 128 MiB and is on one node.
    let (section, size) = (Bytes::mib(128), Bytes::gib(16));
    // Node 1 has boot memory and no CPU. Node 2 has neither.
    let config = Config {
        boot_memory: section + section,
        nodes: vec![section, section, Bytes::ZERO],
        device_node: Some(1),
        more_memory_devices: vec![(size, 2)],
        ..config(size).with_touched_memory(Bytes::mib(32)).with_guest_option("exit", "size:4G")
    };
    let mut vm = start(&config);
    // Each resize: the device, its target, and the boot memory of its node.
    let resizes = [
        (0, Bytes::gib(3), section),
        (1, Bytes::gib(16), Bytes::ZERO),
        (0, Bytes::gib(16), section),
        (1, Bytes::ZERO, Bytes::ZERO),
        (0, Bytes::gib(2), section),
        (1, Bytes::gib(1), Bytes::ZERO),
    ];
    let mut online = Bytes::ZERO;
    for (device, target, boot_memory) in resizes {
        let resize = vm.resize_device(device, target).unwrap();
        assert_eq!(vm.device_size_of(device).unwrap(), target);
        assert_eq!(usize::from(resize.node), device + 1);
        assert_eq!(resize.node_online, boot_memory + target, "device {device} at {target}");
        online = resize.online;
    }
    let boot_memory = online - Bytes::gib(3);
    assert!(boot_memory <= Bytes::mib(256) && boot_memory > Bytes::mib(255), "{boot_memory}");
    vm.finish(Bytes::gib(3));
}

#[test]
fn three_devices_are_resized_at_the_same_time() {
    let size = Bytes::gib(64);
    let config = Config {
        nodes: vec![Bytes::mib(128), Bytes::ZERO],
        device_node: Some(0),
        more_memory_devices: vec![(size, 1), (size, 0)],
        ..config(size).with_touched_memory(Bytes::mib(64)).with_guest_option("exit", "size:3G")
    };
    let mut vm = start(&config);
    for target in [size, Bytes::gib(2), Bytes::gib(33), Bytes::ZERO] {
        vm.request_size_of_device(0, target).unwrap();
        vm.request_size_of_device(2, target).unwrap();
        let resize = vm.resize_device(1, target).unwrap();
        assert_eq!(resize.node_online, target);
    }
    vm.resize_device(1, Bytes::gib(2)).unwrap();
    vm.resize_device(2, Bytes::gib(1)).unwrap();
    vm.finish(Bytes::ZERO);
}
