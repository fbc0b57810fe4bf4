//! Tests that need a newer QEMU than the installed one, or both versions. `cargo xtask test`
//! unpacks Debian's backport of a newer QEMU and runs the tests with it.

use crate::hot_add::{add_device, boot, remove_device, repeat_until_refused, with_ports};
use crate::live_migration::{MigrationFile, wait_until_migrated};
use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Emulator, Event, Vm};

fn newer() -> Emulator {
    Emulator::backport().expect("no backport of QEMU: `cargo xtask setup` unpacks it")
}

#[test]
fn a_device_is_removed_and_another_is_added_in_its_slot() {
    let mut vm =
        boot(&Config { emulator: newer(), ..with_ports().with_guest_option("exit", "size:4G") });
    for (memory, size) in [("8G", Bytes::gib(8)), ("16G", Bytes::gib(16)), ("2G", Bytes::gib(2))] {
        assert_eq!(add_device(&mut vm, 0, memory, ""), (0, size));
        vm.resize(size).unwrap();
        vm.resize(Bytes::ZERO).unwrap();
        remove_device(&mut vm, 0);
    }
    assert_eq!(add_device(&mut vm, 0, "8G", ""), (0, Bytes::gib(8)));
    vm.request(Bytes::gib(4)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_device_that_was_present_at_boot_is_released_by_acpi_hotplug() {
    let config = config(Bytes::gib(8)).with_guest_option("exit", "size:6G");
    let more_memory_devices = vec![(Bytes::gib(4), 0), (Bytes::gib(2), 0)];
    let mut vm = boot(&Config { emulator: newer(), more_memory_devices, ..config });
    // Devices 0 and 2 have no memory plugged, so the guest does not know which of them is meant.
    vm.resize_device(1, Bytes::gib(4)).unwrap();
    vm.monitor_line("device_del vmem2").unwrap();
    repeat_until_refused(&mut vm, "device_del vmem2", "not found");
    vm.monitor_line("object_del plug2").unwrap();
    vm.request(Bytes::gib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn memory_with_dynamic_slots_is_plugged_and_unplugged() {
    let config =
        with_ports().with_touched_memory(Bytes::mib(64)).with_guest_option("exit", "size:1G");
    let mut vm = boot(&Config { emulator: newer(), ..config });
    let size = Bytes::gib(64);
    assert_eq!(add_device(&mut vm, 0, "64G", ",dynamic-memslots=on"), (0, size));
    for target in [size, Bytes::gib(3), Bytes::gib(33), Bytes::ZERO, size] {
        vm.resize(target).unwrap();
        assert_eq!(vm.device_size().unwrap(), target);
    }
    vm.request(Bytes::gib(1)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_machine_is_migrated_to_a_newer_qemu_and_from_there_to_a_second_one() {
    let config = config(Bytes::gib(4))
        .with_touched_memory(Bytes::mib(64))
        .with_guest_option("exit", "size:3G");
    // Both versions of QEMU have this machine type and present it to guests as QEMU 7.2 did.
    let machine = "pc-q35-7.2";
    let config = Config { machine, emulator: Emulator::Installed, ..config };
    let mut vm = Vm::start(&config).unwrap();
    let device = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", device).unwrap();
    for (emulator, target) in [(newer(), Bytes::gib(2)), (newer(), Bytes::gib(4))] {
        vm.resize(target).unwrap();
        vm.wait("touching", |event| matches!(event, Event::Touched { .. }).then_some(())).unwrap();
        vm = migrate(vm, &Config { emulator, ..config.clone() });
        assert_eq!(vm.device_size().unwrap(), target);
        vm.resize(Bytes::gib(1)).unwrap();
    }
    vm.request(Bytes::gib(3)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_machine_is_migrated_before_its_guest_has_started() {
    for emulator in [Emulator::Installed, newer()] {
        let machine = "pc-q35-7.2";
        let config = config(Bytes::gib(1)).with_guest_option("exit", "size:1G");
        let config = Config { machine, emulator, ..config };
        let source = Vm::start(&config).unwrap();
        let mut vm = migrate(source, &Config { emulator: newer(), ..config });
        vm.request(Bytes::gib(1)).unwrap();
        vm.finish().unwrap();
    }
}

/// Migrates the machine to a new machine with this configuration, while the CPUs are stopped.
/// Before that, the guest has filled memory with patterns. It checks afterwards that they are
/// unchanged.
fn migrate(mut source: Vm, config: &Config) -> Vm {
    source.monitor_line("stop").unwrap();
    let file = MigrationFile::begin(&mut source);
    wait_until_migrated(&mut source);
    let mut vm =
        Vm::start(&Config { incoming_state: Some(file.0.clone()), ..config.clone() }).unwrap();
    wait_until_migrated(&mut vm);
    vm.monitor_line("cont").unwrap();
    vm
}
