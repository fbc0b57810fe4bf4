//! Tests of the guest's boot, and of the time from QEMU's start to the guest's first line.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Config, Event, Vm},
    resident::cpu_time,
};
use std::time::Duration;

#[test]
fn the_guest_boots_with_64_mib_and_without_a_device() {
    let small_config = Config {
        boot_memory: Bytes::mib(64),
        ..config(Bytes::ZERO).with_guest_option("exit", "boot")
    };
    let mut vm = Vm::start(&small_config).unwrap();
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
fn the_guest_boots_without_pci_and_acpi() {
    let machine = "microvm,acpi=off";
    let config = Config { machine, ..config(Bytes::ZERO).with_guest_option("exit", "boot") };
    let mut vm = Vm::start(&config).unwrap();
    let boot = |event: &Event| match *event {
        Event::Boot { ms, boot_memory, .. } => Some((ms, boot_memory)),
        _ => None,
    };
    let ((ms, boot_memory), since_start) = vm.wait("boot", boot).unwrap();
    assert!(boot_memory > Bytes::mib(126).0, "{boot_memory}");
    // The guest must not report more time than has passed on the host.
    assert!(u128::from(ms) <= since_start.as_millis(), "{ms} ms");
    vm.finish().unwrap();
}

#[test]
fn the_first_line_takes_at_most_eight_times_the_cpu_time_of_qemus_start() {
    let config = config(Bytes::gib(64));
    // The test compares the CPU time until the first line with the CPU time until QEMU's monitor
    // answers. Other processes do not change CPU times, and the speed of the host changes both. On
    // an idle host, `hotmem bench vm` measures at most 0.13 s of elapsed time.
    let times: Vec<_> = (0..5)
        .map(|_| {
            let mut vm = Vm::start(&config).unwrap();
            let qemu_start = cpu_time(vm.pid()).unwrap();
            vm.first_line().unwrap();
            (qemu_start, cpu_time(vm.pid()).unwrap())
        })
        .collect();
    let qemu_start = times.iter().map(|&(qemu_start, _)| qemu_start).max().unwrap_or_default();
    // The kernel may count CPU time in steps of 10 ms.
    let limit = (qemu_start + Duration::from_millis(10)) * 8;
    assert!(times.iter().any(|&(_, first_line)| first_line < limit), "{times:?}");
}
