//! Tests of devices that are hot-plugged by ACPI, as QEMU's PCs do it unless they are configured
//! for native PCI Express hot-plug.

use crate::hot_add::{add, boot, until_refused};
use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event};

/// Returns a machine with two empty root ports with QEMU's default options.
fn with_ports() -> Config {
    let ports = ["spare0,slot=50", "spare1,slot=51"];
    let ports = ports.map(|port| format!("pcie-root-port,bus=pcie.0,id={port}"));
    let other_devices = ports.map(|port| &*port.leak()).to_vec();
    Config { other_devices, ..config(Bytes::ZERO) }
}

#[test]
fn devices_are_added_one_after_another() {
    let mut vm = boot(&with_ports().touching(Bytes::mib(32)).with("exit", "size:1G"));
    assert_eq!(add(&mut vm, 1, "8G"), (0, Bytes::gib(8)));
    for target in [Bytes::gib(8), Bytes::ZERO, Bytes::mib(512)] {
        // The guest's first device is QEMU's second.
        vm.request_of(1, target).unwrap();
        let resized = |event: &Event| match *event {
            Event::Resized { target: reached, .. } => (reached == target.0).then_some(()),
            _ => None,
        };
        vm.wait("end of the resize", resized).unwrap();
    }
    assert_eq!(add(&mut vm, 0, "4G"), (1, Bytes::gib(4)));
    vm.request_of(0, Bytes::mib(512)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_device_is_released_on_request_and_its_slot_is_used_again() {
    let mut config = with_ports().with("exit", "size:2G");
    config.other_devices.push("virtio-rng-pci");
    let mut vm = boot(&config);
    // The guest finds a device that is present from the start by PCI, and so does not know its ACPI
    // name.
    let answer = |event: &Event| matches!(event, Event::Entropy { .. }).then_some(());
    vm.wait("answer", answer).unwrap();
    for _ in 0..3 {
        // The guest has no driver for a hot-plugged balloon.
        vm.monitor_line("device_add virtio-balloon-pci,id=other,bus=spare0").unwrap();
        until_refused(&mut vm, "device_del other", "not found");
    }
    assert_eq!(add(&mut vm, 0, "8G"), (0, Bytes::gib(8)));
    vm.request_of(0, Bytes::gib(2)).unwrap();
    vm.finish().unwrap();
}
