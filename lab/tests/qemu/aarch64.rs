//! Tests of the guest on QEMU's machine for aarch64. `cargo xtask test` skips them, and says so, where
//! QEMU has no such machine.

use crate::dimms::{check_that_a_cold_dimm_is_added, check_that_slots_are_used_again};
use crate::support::{
    EntropyAnswer, check_that_overflows_are_reported, reason_for_giving_up, wait_for_entropy,
    wait_for_touched,
};
use hotmem::Bytes;
use hotmem_lab::patience;
use hotmem_lab::qemu::{Architecture, Balloon, Config, Event, Transport, Vm, image};
use std::path::PathBuf;
use std::sync::LazyLock;

static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    image::find_for(Architecture::Aarch64, None).expect("the guest could not be built")
});

/// Returns a machine with 128 MiB of boot memory and a virtio-mem device of `device_memory`.
fn config(device_memory: Bytes) -> Config {
    Config { patience: patience(), ..Config::aarch64(IMAGE.clone(), device_memory) }
}

/// Starts the machine and waits until the guest has initialised its device.
fn start(config: &Config) -> Vm {
    let mut vm = Vm::start(config).unwrap();
    let device = |event: &Event| match event {
        Event::Device { kind, .. } => (kind == "virtio-mem").then_some(()),
        _ => None,
    };
    vm.wait("device", device).unwrap();
    vm
}

#[test]
fn memory_is_plugged_used_unplugged_and_plugged_again() {
    let (size, touched) = (Bytes::gib(2), Bytes::mib(64));
    let config = config(size).with_touched_memory(touched).with_guest_option("exit", "resizes:4");
    // The descriptors of all frames are checked at the end.
    let config = config.with_guest_option("descriptors", 64);
    let mut vm = start(&config);
    for target in [size, Bytes::ZERO, size] {
        let resize = vm.resize(target).unwrap();
        assert_eq!(vm.device_size().unwrap(), target);
        assert_eq!(resize.online, config.boot_memory + target);
        if target != Bytes::ZERO {
            assert_eq!(wait_for_touched(&mut vm), touched);
        }
    }
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

#[test]
fn four_cpus_share_no_frame_while_memory_is_resized() {
    let config = config(Bytes::gib(1)).with_guest_option("churn", "on");
    let mut vm = start(&Config { cpus: 4, ..config.with_guest_option("exit", "resizes:5") });
    for mib in [1024, 64, 512, 0] {
        vm.resize(Bytes::mib(mib)).unwrap();
    }
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn freed_memory_is_reported_to_the_balloon() {
    let config = config(Bytes::gib(1)).with_touched_memory(Bytes::mib(64));
    let config = config.with_guest_option("hold", "off").with_guest_option("exit", "resizes:2");
    let mut vm = start(&Config { balloon: Balloon::Reports, ..config });
    vm.resize(Bytes::gib(1)).unwrap();
    vm.wait("reports", |event| matches!(event, Event::Reported { .. }).then_some(())).unwrap();
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

/// The kernel is entered in EL2, and calls the firmware by `smc`.
#[test]
fn the_guest_boots_where_it_could_run_virtual_machines() {
    let machine = "virt,gic-version=3,virtualization=on";
    let config = Config { machine, cpus: 2, ..config(Bytes::ZERO) };
    let mut vm = Vm::start(&config.with_guest_option("exit", "boot")).unwrap();
    let boot = |event: &Event| match *event {
        Event::Boot { boot_memory, cpus, .. } => Some((boot_memory, cpus)),
        _ => None,
    };
    assert_eq!(vm.wait("boot", boot).unwrap().0, (Bytes::mib(128).0, 2));
    vm.finish().unwrap();
}

/// PCI's configuration space has 16 buses here, and the RAM follows it.
#[test]
fn buses_beyond_a_small_configuration_space_are_not_searched() {
    let machine = "virt,gic-version=3,highmem=off";
    let config = config(Bytes::ZERO).with_guest_option("exit", "size:0");
    // There are no addresses for more memory than the machine boots with.
    let max_memory = Some(config.boot_memory);
    let config = Config { machine, max_memory, balloon: Balloon::Plain, ..config };
    let mut vm = Vm::start(&config).unwrap();
    let balloon = |event: &Event| matches!(event, Event::Balloon { .. }).then_some(());
    vm.wait("balloon", balloon).unwrap();
    vm.finish().unwrap();
}

/// Returns how a device that answers one request interrupts, and whether it has interrupted, if devices
/// may interrupt by `allowed`.
fn interrupts_of(devices: Vec<&'static str>, allowed: &str) -> (String, bool) {
    let config = config(Bytes::ZERO).with_guest_option("interrupts", allowed);
    let config = config.with_guest_option("exit", "size:0");
    let mut vm = Vm::start(&Config { other_device_options: devices, ..config }).unwrap();
    let EntropyAnswer { interrupts, interrupted, .. } = wait_for_entropy(&mut vm);
    vm.finish().unwrap();
    (interrupts, interrupted)
}

#[test]
fn a_device_interrupts_by_the_interrupt_translation_service() {
    assert_eq!(interrupts_of(vec!["virtio-rng-pci"], "msix"), ("msix".into(), true));
}

#[test]
fn a_device_behind_a_bridge_interrupts_by_its_line() {
    for port in ["pcie-root-port,id=bridge,addr=1", "pcie-root-port,id=bridge,addr=6"] {
        let devices = vec![port, "virtio-rng-pci,bus=bridge"];
        assert_eq!(interrupts_of(devices, "intx"), ("intx".into(), true), "{port}");
    }
}

/// The device tree lists QEMU's places for devices on MMIO. QEMU puts the first device into the last one.
#[test]
fn a_device_on_mmio_interrupts_by_its_line() {
    let config = config(Bytes::ZERO).with_guest_option("exit", "size:0");
    let devices = vec!["virtio-rng-device"];
    let config = Config { transport: Transport::Mmio, other_device_options: devices, ..config };
    let mut vm = Vm::start(&config).unwrap();
    let answer = wait_for_entropy(&mut vm);
    assert_eq!((answer.transport.as_str(), answer.interrupted), ("mmio", true));
    vm.finish().unwrap();
}

/// The service's table of devices has room for 32 buses, and the line of a device behind another root bus
/// is not known.
#[test]
fn a_device_without_room_in_the_table_of_devices_and_without_a_line_is_polled() {
    let port = "pcie-root-port,id=far-port,bus=far,chassis=1";
    let devices = vec!["pxb-pcie,id=far,bus_nr=32", port, "virtio-rng-pci,bus=far-port"];
    assert_eq!(interrupts_of(devices, "msix"), ("poll".into(), false));
}

/// The registers are in memory, and a generic event device tells of changes.
#[test]
fn dimms_are_added_used_and_removed_and_their_slots_are_used_again() {
    check_that_slots_are_used_again(config(Bytes::ZERO));
}

#[test]
fn a_dimm_that_is_present_at_the_start_is_added() {
    check_that_a_cold_dimm_is_added(config(Bytes::ZERO));
}

#[test]
fn a_machine_without_a_gicv3_is_refused_by_name() {
    let config = Config { machine: "virt,gic-version=2", ..config(Bytes::ZERO) };
    let reason = reason_for_giving_up(&config.with_guest_option("exit", "boot"));
    assert!(reason.contains("the device tree lists no GICv3"), "{reason}");
}

#[test]
fn an_option_that_needs_nmis_is_refused_by_name() {
    let reason = reason_for_giving_up(&config(Bytes::gib(1)).with_guest_option("nmis", "on"));
    assert!(reason.contains("the kernel has no NMIs on aarch64"), "{reason}");
}

#[test]
fn an_overflow_of_a_cpus_stack_ends_the_run_with_that_reason() {
    check_that_overflows_are_reported(&config(Bytes::gib(1)));
}
