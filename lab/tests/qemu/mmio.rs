//! Tests of virtio devices on MMIO, on QEMU's machine `microvm`.

use crate::support::{config, wait_for_entropy};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Transport, Vm};

fn microvm(device_memory: Bytes) -> Config {
    let machine = "microvm,acpi=off";
    Config { machine, transport: Transport::Mmio, ..config(device_memory) }
}

#[test]
fn a_virtio_mem_device_on_mmio_plugs_and_unplugs() {
    // QEMU does not map the memory of a virtio-mem device on MMIO, so the guest must not access it.
    let mut vm = Vm::start(&microvm(Bytes::gib(64)).with_guest_option("exit", "size:2M")).unwrap();
    let device = |event: &Event| match event {
        Event::Device { transport, interrupts, .. } => {
            Some((transport.clone(), interrupts.clone()))
        }
        _ => None,
    };
    let ((transport, interrupts), _) = vm.wait("device", device).unwrap();
    assert_eq!((transport.as_str(), interrupts.as_str()), ("mmio", "intx"));
    let mut first_boot_memory = None;
    let mut resize_interrupts = |gib| {
        let target = Bytes::gib(gib);
        let resize = vm.resize(target).unwrap();
        assert_eq!(vm.device_size().unwrap(), target);
        let boot_memory = resize.online - target;
        assert_eq!(*first_boot_memory.get_or_insert(boot_memory), boot_memory, "{target}");
        resize.interrupted
    };
    let interrupted = [64, 0, 3, 64, 1].map(&mut resize_interrupts).contains(&true);
    // The guest may find a request by polling just before the interrupt, so the test makes more
    // resizes until an interrupt announces a request.
    assert!(interrupted || (2..64).any(resize_interrupts));
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn several_devices_have_separate_interrupt_lines() {
    let config = Config {
        other_device_options: vec!["virtio-rng-device", "virtio-balloon-device"],
        more_memory_devices: vec![(Bytes::gib(4), 0)],
        ..microvm(Bytes::gib(4)).with_guest_option("exit", "size:3G")
    };
    let mut vm = Vm::start(&config).unwrap();
    let answer = wait_for_entropy(&mut vm);
    assert_eq!((answer.transport.as_str(), answer.interrupted, answer.bytes), ("mmio", true, 64));
    vm.resize_device(1, Bytes::gib(4)).unwrap();
    vm.resize_device(0, Bytes::gib(4)).unwrap();
    vm.resize_device(1, Bytes::gib(1)).unwrap();
    vm.request_size_of_device(0, Bytes::gib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_device_with_the_legacy_interface_is_refused() {
    let config = Config {
        transport: Transport::Pci,
        other_device_options: vec!["virtio-rng-device"],
        ..microvm(Bytes::ZERO)
    };
    let mut vm = Vm::start(&config).unwrap();
    let refusal = vm.wait("refusal", |_| None::<()>).unwrap_err().to_string();
    assert!(refusal.contains("virtio-mmio"), "{refusal}");
}

#[test]
fn a_balloon_device_on_mmio_inflates_and_deflates() {
    let config = microvm(Bytes::gib(1)).with_guest_option("exit", "size:2M");
    let balloon = "virtio-balloon-device,id=balloon0";
    let mut vm = Vm::start(&Config { other_device_options: vec![balloon], ..config }).unwrap();
    let bus_and_interrupts = |event: &Event| match event {
        Event::Balloon { transport, interrupts, .. } => {
            Some((transport.clone(), interrupts.clone()))
        }
        _ => None,
    };
    let (found, _) = vm.wait("balloon", bus_and_interrupts).unwrap();
    assert_eq!(found, ("mmio".to_owned(), "intx".to_owned()));
    for guest_mib in [64, 128, 96] {
        vm.monitor_line(&format!("balloon {guest_mib}")).unwrap();
        let size = Bytes::mib(128 - guest_mib);
        let inflated = |event: &Event| match *event {
            Event::Inflated { held, .. } => Some(Bytes(held)),
            _ => None,
        };
        assert_eq!(vm.wait("balloon's size", inflated).unwrap().0, size);
    }
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}
