//! Tests of virtio devices on PCI behind a second root bus, and with features that are not QEMU's
//! defaults.

use crate::support::{config, wait_for_entropy};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Vm};

#[test]
fn devices_work_behind_a_second_root_bus_and_are_added_there() {
    let config = Config {
        empty_ports: 1,
        other_device_options: vec![
            "pxb-pcie,id=root1,bus=pcie.0,bus_nr=0x40",
            "pcie-root-port,id=near,bus=root1,slot=100",
            // This is the last slot of the second root bus.
            "pcie-root-port,id=spare10,bus=root1,slot=101,addr=0x1f",
            "virtio-rng-pci,bus=near",
        ],
        ..config(Bytes::ZERO).with_guest_option("exit", "size:2M")
    };
    let mut vm = Vm::start(&config).unwrap();
    let answer = wait_for_entropy(&mut vm);
    assert_eq!((answer.interrupts.as_str(), answer.interrupted), ("msix", true));
    vm.monitor_line("object_add memory-backend-ram,id=more,size=1G,reserve=off").unwrap();
    vm.monitor_line("device_add virtio-mem-pci,id=vmem0,memdev=more,bus=spare10").unwrap();
    let added = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", added).unwrap();
    vm.resize(Bytes::gib(1)).unwrap();
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_device_with_port_notifications_or_without_msix_answers() {
    for kind in ["virtio-rng-pci,modern-pio-notify=on", "virtio-rng-pci,vectors=0"] {
        let config = config(Bytes::ZERO).with_guest_option("exit", "size:0");
        let mut vm = Vm::start(&Config { other_device_options: vec![kind], ..config }).unwrap();
        let answer = wait_for_entropy(&mut vm);
        assert_eq!((answer.interrupted, answer.bytes), (true, 64), "{kind}");
        vm.finish().unwrap();
    }
}
