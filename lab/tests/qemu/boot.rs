//! From QEMU's start to an idle guest.

use crate::support::{config, start, turn};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Vm};
use std::{thread, time::Duration};

#[test]
fn boots_with_64_mib_and_without_a_device() {
    let _turn = turn();
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
    let _turn = turn();
    let machine = "microvm,acpi=off";
    let config = Config { machine, ..config(Bytes::ZERO).with("exit", "boot") };
    let mut vm = Vm::start(&config).unwrap();
    let boot = |event: &Event| match *event {
        Event::Boot { ms, boot_memory, .. } => Some((ms, boot_memory)),
        _ => None,
    };
    let ((ms, boot_memory), since_start) = vm.wait("boot", boot).unwrap();
    assert!(boot_memory > Bytes::mib(126).0, "{boot_memory}");
    // A clock that runs wrong by so much is none.
    assert!(u128::from(ms) <= since_start.as_millis(), "{ms} ms");
    vm.finish().unwrap();
}

#[test]
fn the_first_line_comes_soon() {
    let _turn = turn();
    let config = config(Bytes::gib(64));
    let mut times: Vec<_> =
        (0..5).map(|_| Vm::start(&config).unwrap().first_line().unwrap()).collect();
    times.sort();
    // The figure to reach is 0.13 s on an idle machine; `hotmem bench vm` measures it.
    assert!(times[2] < Duration::from_millis(400), "{times:?}");
}

#[test]
fn an_idle_guest_leaves_the_cpu_alone() {
    let mut vm = start(&config(Bytes::gib(64)));
    for plugged in [Bytes::ZERO, Bytes::gib(64)] {
        if plugged != Bytes::ZERO {
            vm.resize(plugged).unwrap();
        }
        let period = Duration::from_secs(4);
        let before = cpu_time(vm.pid());
        thread::sleep(period);
        let used = cpu_time(vm.pid()) - before;
        assert!(used < period.mul_f64(0.02), "{used:?} in {period:?} with {plugged}");
    }
}

/// User and system time of all of a process's threads, in steps of 10 ms.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Fields are counted from behind the name, which may hold spaces: utime is the 12th.
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 1..].split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // Linux counts them in units of 1/100 s (USER_HZ) on every architecture that QEMU runs on.
    Duration::from_millis(ticks * 10)
}
