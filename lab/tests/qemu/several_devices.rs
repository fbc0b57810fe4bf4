//! Tests of several devices whose requests overlap in time.

use crate::balloon::touched;
use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Balloon, Config, Event, Vm};

/// The sizes of two devices that share a gigabyte of addresses, and so a page table.
const SIZES: [Bytes; 2] = [Bytes::mib(1536), Bytes::mib(512)];

/// Waits until each device has plugged its target.
fn wait_for_sizes(vm: &mut Vm, targets: [Bytes; 2]) {
    let mut missing: Vec<_> = (0..2).map(|device| (device, targets[device].0)).collect();
    let resized = |event: &Event| {
        if let Event::Resized { device, target, .. } = *event {
            missing.retain(|&awaited| awaited != (device, target));
        }
        missing.is_empty().then_some(())
    };
    vm.wait("both sizes", resized).unwrap();
}

#[test]
fn memory_is_unplugged_from_one_device_while_it_is_plugged_into_another() {
    let config = Config {
        more_memory_devices: vec![(SIZES[1], 0)],
        ..config(SIZES[0]).with_guest_option("exit", "size:6M")
    };
    let mut vm = Vm::start(&config).unwrap();
    vm.resize(SIZES[0]).unwrap();
    for _ in 0..3 {
        for targets in [[Bytes::ZERO, SIZES[1]], [SIZES[0], Bytes::ZERO]] {
            // The guest sees both requests at once.
            vm.monitor_line("stop").unwrap();
            vm.request_size_of_device(0, targets[0]).unwrap();
            vm.request_size_of_device(1, targets[1]).unwrap();
            vm.monitor_line("cont").unwrap();
            wait_for_sizes(&mut vm, targets);
        }
    }
    vm.request(Bytes::mib(6)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn memory_is_plugged_into_a_guest_without_a_free_frame() {
    let size = Bytes::gib(2);
    for balloon in [Balloon::None, Balloon::Everything] {
        // The guest fills all of its memory, and cannot fill as much as it is asked to.
        let config =
            config(size).with_guest_option("work", "400M").with_guest_option("exit", "size:2G");
        let config = match balloon {
            Balloon::None => config,
            _ => config.with_guest_option("work_at", "inflated"),
        };
        let config = Config { balloon, boot_memory: Bytes::mib(256), ..config };
        let mut vm = Vm::start(&config).unwrap();
        if balloon != Balloon::None {
            vm.monitor_line("balloon 128").unwrap();
        }
        vm.wait("touching", touched).unwrap();
        vm.request(size).unwrap();
        vm.finish().unwrap();
    }
}
