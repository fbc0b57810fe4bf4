//! Tests of ACPI hotplug of devices, which is the default of QEMU's PCs. The other kind is native
//! PCI Express hotplug.

use crate::balloon::inflated;
use crate::hot_add::{add, boot, lost_balloon, repeat_until_refused};
use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event};

/// Returns a machine with two empty root ports and QEMU's default kind of hotplug.
pub(crate) fn with_ports() -> Config {
    let ports = ["spare0,slot=50", "spare1,slot=51"];
    let ports = ports.map(|port| format!("pcie-root-port,bus=pcie.0,id={port}"));
    let other_device_options = ports.map(|port| &*port.leak()).to_vec();
    Config { other_device_options, ..config(Bytes::ZERO) }
}

#[test]
fn devices_are_added_by_acpi_hotplug_and_resized() {
    let mut vm = boot(
        &with_ports().with_touched_memory(Bytes::mib(32)).with_guest_option("exit", "size:1G"),
    );
    assert_eq!(add(&mut vm, 1, "8G"), (0, Bytes::gib(8)));
    for target in [Bytes::gib(8), Bytes::ZERO, Bytes::mib(512)] {
        // QEMU's device `vmem1` is the guest's device 0.
        vm.request_size_of_device(1, target).unwrap();
        let resized = |event: &Event| match *event {
            Event::Resized { target: reached, .. } => (reached == target.0).then_some(()),
            _ => None,
        };
        vm.wait("end of the resize", resized).unwrap();
    }
    assert_eq!(add(&mut vm, 0, "4G"), (1, Bytes::gib(4)));
    vm.request_size_of_device(0, Bytes::mib(512)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_device_is_released_on_request_and_its_slot_is_used_again() {
    let mut config = with_ports().with_guest_option("exit", "size:2G");
    config.other_device_options.push("virtio-rng-pci");
    let mut vm = boot(&config);
    // The guest finds the devices that are present at the start by a scan of PCI, so it does not know
    // their names in ACPI.
    let answer = |event: &Event| matches!(event, Event::Entropy { .. }).then_some(());
    vm.wait("answer", answer).unwrap();
    for _ in 0..3 {
        // The guest has no driver for a hot-plugged balloon.
        vm.monitor_line("device_add virtio-balloon-pci,id=other,bus=spare0").unwrap();
        repeat_until_refused(&mut vm, "device_del other", "not found");
    }
    assert_eq!(add(&mut vm, 0, "8G"), (0, Bytes::gib(8)));
    vm.request_size_of_device(0, Bytes::gib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn devices_that_were_present_at_boot_are_released_on_request() {
    let mut config = with_ports().with_guest_option("exit", "size:2G");
    let at_boot =
        ["virtio-balloon-pci,id=balloon0,bus=spare0", "virtio-rng-pci,id=rng0,bus=spare1"];
    config.other_device_options.extend(at_boot);
    let mut vm = boot(&Config { device_memory: Bytes::gib(8), ..config });
    vm.monitor_line("balloon 64").unwrap();
    assert_eq!(vm.wait("balloon's size", inflated).unwrap().0.1, Bytes::mib(64).0);
    vm.monitor_line("device_del balloon0").unwrap();
    vm.wait("end of the balloon", lost_balloon).unwrap();
    repeat_until_refused(&mut vm, "device_del balloon0", "not found");
    // The guest did not know in which port the balloon was. So it stopped the memory device, too, and
    // has started it again.
    let device = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", device).unwrap();
    vm.resize(Bytes::gib(8)).unwrap();
    repeat_until_refused(&mut vm, "device_del rng0", "not found");
    assert_eq!(add(&mut vm, 1, "4G"), (1, Bytes::gib(4)));
    vm.request(Bytes::gib(2)).unwrap();
    vm.finish().unwrap();
}
