//! Tests of the time from QEMU's start to an idle guest.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Config, Event, Vm},
    resident::cpu_time,
};
use std::time::Duration;

#[test]
fn boots_with_64_mib_and_without_a_device() {
    let small = Config { boot_memory: Bytes::mib(64), ..config(Bytes::ZERO).with("exit", "boot") };
    let mut vm = Vm::start(&small).unwrap();
    let boot = |event: &Event| match *event {
        Event::Boot { boot_memory, cpus, .. } => Some((boot_memory, cpus)),
        _ => None,
    };
    let ((boot_memory, cpus), _) = vm.wait("boot", boot).unwrap();
    assert!(boot_memory <= Bytes::mib(64).0 && boot_memory > Bytes::mib(62).0, "{boot_memory}");
    assert_eq!(cpus, 1);
    vm.finish().unwrap();
}

#[test]
fn boots_without_pci_and_acpi() {
    let machine = "microvm,acpi=off";
    let config = Config { machine, ..config(Bytes::ZERO).with("exit", "boot") };
    let mut vm = Vm::start(&config).unwrap();
    let boot = |event: &Event| match *event {
        Event::Boot { ms, boot_memory, .. } => Some((ms, boot_memory)),
        _ => None,
    };
    let ((ms, boot_memory), since_start) = vm.wait("boot", boot).unwrap();
    assert!(boot_memory > Bytes::mib(126).0, "{boot_memory}");
    // The guest's clock must not show more time than has passed on the host.
    assert!(u128::from(ms) <= since_start.as_millis(), "{ms} ms");
    vm.finish().unwrap();
}

#[test]
fn the_first_line_is_printed_soon() {
    let config = config(Bytes::gib(64));
    // The test compares CPU time, which other processes do not change, with the CPU time that QEMU
    // needs until its monitor answers, because hosts differ. `hotmem bench vm` measures the elapsed
    // time: 0.13 s at most on an idle host.
    let times: Vec<_> = (0..5)
        .map(|_| {
            let mut vm = Vm::start(&config).unwrap();
            let own = cpu_time(vm.pid()).unwrap();
            vm.first_line().unwrap();
            (own, cpu_time(vm.pid()).unwrap())
        })
        .collect();
    let own = times.iter().map(|&(own, _)| own).max().unwrap_or_default();
    // The kernel counts CPU time in steps of 10 ms.
    let most = (own + Duration::from_millis(10)) * 8;
    assert!(times.iter().any(|&(_, first_line)| first_line < most), "{times:?}");
}
