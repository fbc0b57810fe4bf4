//! Tests of native PCI Express hotplug: devices are added and removed while the machine runs.

use crate::balloon::inflated;
use crate::support::{config, wait_for};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Event, Vm};
use std::{thread, time::Duration};

/// Returns a machine with two empty root ports. Its `maxmem` is that of the machine on which a
/// report to linux-mm (March 2026) measured Linux's zones.
pub(crate) fn with_ports() -> Config {
    Config {
        boot_memory: Bytes::gib(2),
        max_memory: Some(Bytes::mib(2_052_472)),
        empty_ports: 2,
        ..config(Bytes::ZERO)
    }
}

/// Starts the machine and waits until the guest has booted.
pub(crate) fn boot(config: &Config) -> Vm {
    let mut vm = Vm::start(config).unwrap();
    let boot = |event: &Event| matches!(event, Event::Boot { .. }).then_some(());
    vm.wait("boot", boot).unwrap();
    vm
}

/// Adds the device `vmem{n}` with shared memory of `size`, as in the report. Returns the guest's
/// number of the device, and the device's size.
pub(crate) fn add(vm: &mut Vm, n: usize, size: &str) -> (usize, Bytes) {
    add_device(vm, n, &format!("{size},share=on"), "")
}

/// Adds a device as [`add`] does. `memory` is the size and further properties of the memory backend,
/// and `extra_properties` are further properties of the device, each after a comma.
pub(crate) fn add_device(
    vm: &mut Vm,
    n: usize,
    memory: &str,
    extra_properties: &str,
) -> (usize, Bytes) {
    let backend = format!("memory-backend-ram,id=hotmem{n},size={memory},reserve=off");
    vm.monitor_line(&format!("object_add {backend}")).unwrap();
    let device =
        format!("virtio-mem-pci,id=vmem{n},memdev=hotmem{n},bus=spare{n}{extra_properties}");
    vm.monitor_line(&format!("device_add {device}")).unwrap();
    let added = |event: &Event| match *event {
        Event::Device { device, region_size, .. } => Some((device, Bytes(region_size))),
        _ => None,
    };
    vm.wait("device", added).unwrap().0
}

/// Repeats a monitor command until QEMU refuses it for `reason`.
pub(crate) fn repeat_until_refused(vm: &mut Vm, line: &str, reason: &str) {
    wait_for(reason, || {
        let answer = vm.monitor_line(line);
        matches!(answer, Err(error) if error.to_string().contains(reason)).then_some(())
    });
}

/// Returns a value if the event reports that the guest no longer uses the balloon.
pub(crate) fn lost_balloon(event: &Event) -> Option<()> {
    matches!(event, Event::BalloonLost { .. }).then_some(())
}

#[test]
fn the_balloon_is_emptied_before_its_slot_is_powered_off() {
    let mut config = with_ports().with_guest_option("exit", "size:4G");
    config.other_device_options.extend([
        "pcie-root-port,bus=pcie.0,id=full,slot=60",
        "virtio-balloon-pci,id=balloon0,bus=full",
    ]);
    let mut vm = boot(&config);
    vm.monitor_line("balloon 1024").unwrap();
    assert_eq!(vm.wait("balloon's size", inflated).unwrap().0.1, Bytes::gib(1).0);
    vm.monitor_line("device_del balloon0").unwrap();
    vm.wait("end of the balloon", lost_balloon).unwrap();
    repeat_until_refused(&mut vm, "device_del balloon0", "not found");
    assert_eq!(add(&mut vm, 1, "8G"), (0, Bytes::gib(8)));
    vm.request_size_of_device(1, Bytes::gib(4)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn devices_are_added_while_the_machine_runs() {
    let config =
        with_ports().with_touched_memory(Bytes::mib(32)).with_guest_option("exit", "size:1G");
    let mut vm = boot(&config);
    let size = Bytes::gib(512);
    assert_eq!(add(&mut vm, 0, "512G"), (0, size));
    for target in [size, Bytes::ZERO, Bytes::gib(64)] {
        vm.resize(target).unwrap();
        assert_eq!(vm.device_size().unwrap(), target);
    }
    assert_eq!(add(&mut vm, 1, "16G"), (1, Bytes::gib(16)));
    vm.resize_device(1, Bytes::gib(16)).unwrap();
    vm.resize_device(1, Bytes::ZERO).unwrap();
    vm.request(Bytes::gib(1)).unwrap();
    vm.finish().unwrap();
}

/// Removes the device `vmem{n}` and its memory backend.
pub(crate) fn remove_device(vm: &mut Vm, n: usize) {
    vm.monitor_line(&format!("device_del vmem{n}")).unwrap();
    let removed = |event: &Event| matches!(event, Event::Removed { device, .. } if *device == n);
    vm.wait("removal", |event| removed(event).then_some(())).unwrap();
    repeat_until_refused(vm, &format!("device_del vmem{n}"), "not found");
    vm.monitor_line(&format!("object_del hotmem{n}")).unwrap();
}

#[test]
fn a_device_that_qemu_refuses_to_remove_stays_in_use() {
    let mut vm = boot(&with_ports().with_guest_option("exit", "size:4G"));
    let size = Bytes::gib(8);
    assert_eq!(add(&mut vm, 0, "8G"), (0, size));
    vm.resize(size).unwrap();
    if vm.query_monitor("info version").unwrap().starts_with("7.") {
        vm.resize(Bytes::ZERO).unwrap();
    }
    // QEMU before 8.2 refuses to remove any virtio-mem device. Later versions refuse to remove a
    // device that has memory plugged.
    let refused = vm.monitor_line("device_del vmem0").unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    vm.request(Bytes::gib(4)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn the_guest_releases_a_device_on_request() {
    let mut vm = boot(&with_ports().with_guest_option("exit", "size:4G"));
    for _ in 0..3 {
        // The guest has no driver for a balloon device that is added later.
        vm.monitor_line("device_add virtio-balloon-pci,id=other,bus=spare1").unwrap();
        // Wait until the guest has powered the slot. QEMU removes a device in an unpowered slot
        // without a request to the guest.
        thread::sleep(Duration::from_millis(300));
        repeat_until_refused(&mut vm, "device_del other", "not found");
    }
    assert_eq!(add(&mut vm, 1, "8G"), (0, Bytes::gib(8)));
    vm.request_size_of_device(1, Bytes::gib(4)).unwrap();
    vm.finish().unwrap();
}
