//! Tests of devices that are hot-plugged and unplugged while the machine runs.

use crate::support::{config, wait_for};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Event, Vm};
use std::{thread, time::Duration};

/// Returns a machine with two empty root ports and room for as much memory as in the report in
/// which Linux's zones were last measured (linux-mm, March 2026).
pub(crate) fn with_ports() -> Config {
    Config {
        boot_memory: Bytes::gib(2),
        max_memory: Some(Bytes::mib(2_052_472)),
        empty_ports: 2,
        ..config(Bytes::ZERO)
    }
}

pub(crate) fn boot(config: &Config) -> Vm {
    let mut vm = Vm::start(config).unwrap();
    let boot = |event: &Event| matches!(event, Event::Boot { .. }).then_some(());
    vm.wait("boot", boot).unwrap();
    vm
}

/// Adds the device `vmem{n}` with this much shared memory, as in that report. Returns the guest's
/// number of the device and its size.
pub(crate) fn add(vm: &mut Vm, n: usize, size: &str) -> (usize, Bytes) {
    add_with(vm, n, &format!("{size},share=on"), "")
}

/// Adds a device as [`add`] does, with these options of the memory and of the device.
pub(crate) fn add_with(vm: &mut Vm, n: usize, memory: &str, options: &str) -> (usize, Bytes) {
    let backend = format!("memory-backend-ram,id=hotmem{n},size={memory},reserve=off");
    vm.monitor_line(&format!("object_add {backend}")).unwrap();
    let device = format!("virtio-mem-pci,id=vmem{n},memdev=hotmem{n},bus=spare{n}{options}");
    vm.monitor_line(&format!("device_add {device}")).unwrap();
    let added = |event: &Event| match *event {
        Event::Device { device, region_size, .. } => Some((device, Bytes(region_size))),
        _ => None,
    };
    vm.wait("device", added).unwrap().0
}

/// Repeats a monitor command until QEMU refuses it for this reason.
pub(crate) fn until_refused(vm: &mut Vm, line: &str, reason: &str) {
    wait_for(reason, || {
        let answer = vm.monitor_line(line);
        matches!(answer, Err(error) if error.to_string().contains(reason)).then_some(())
    });
}

#[test]
fn devices_are_added_while_the_machine_runs() {
    let config = with_ports().touching(Bytes::mib(32)).with("exit", "size:1G");
    let mut vm = boot(&config);
    let size = Bytes::gib(512);
    assert_eq!(add(&mut vm, 0, "512G"), (0, size));
    for target in [size, Bytes::ZERO, Bytes::gib(64)] {
        vm.resize(target).unwrap();
        assert_eq!(vm.device_size().unwrap(), target);
    }
    assert_eq!(add(&mut vm, 1, "16G"), (1, Bytes::gib(16)));
    vm.resize_of(1, Bytes::gib(16)).unwrap();
    vm.resize_of(1, Bytes::ZERO).unwrap();
    vm.request(Bytes::gib(1)).unwrap();
    vm.finish().unwrap();
}

/// Removes the device `vmem{n}`, and waits until the device and its memory are gone.
pub(crate) fn take_away(vm: &mut Vm, n: usize) {
    vm.monitor_line(&format!("device_del vmem{n}")).unwrap();
    let removed = |event: &Event| matches!(event, Event::Removed { device, .. } if *device == n);
    vm.wait("removal", |event| removed(event).then_some(())).unwrap();
    until_refused(vm, &format!("device_del vmem{n}"), "not found");
    vm.monitor_line(&format!("object_del hotmem{n}")).unwrap();
}

#[test]
fn a_device_that_qemu_refuses_to_remove_stays_in_use() {
    let mut vm = boot(&with_ports().with("exit", "size:4G"));
    let size = Bytes::gib(8);
    assert_eq!(add(&mut vm, 0, "8G"), (0, size));
    vm.resize(size).unwrap();
    if vm.ask_monitor("info version").unwrap().starts_with("7.") {
        vm.resize(Bytes::ZERO).unwrap();
    }
    // QEMU before 8.2 refuses to unplug any virtio-mem device, and later versions one that has
    // memory plugged.
    let refused = vm.monitor_line("device_del vmem0").unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    vm.request(Bytes::gib(4)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_slot_releases_a_device_on_request() {
    let mut vm = boot(&with_ports().with("exit", "size:4G"));
    for _ in 0..3 {
        // The guest has no driver for it.
        vm.monitor_line("device_add virtio-balloon-pci,id=other,bus=spare1").unwrap();
        // The slot must be powered before the request; otherwise QEMU removes the device without
        // asking the guest.
        thread::sleep(Duration::from_millis(300));
        until_refused(&mut vm, "device_del other", "not found");
    }
    assert_eq!(add(&mut vm, 1, "8G"), (0, Bytes::gib(8)));
    vm.request_of(1, Bytes::gib(4)).unwrap();
    vm.finish().unwrap();
}
