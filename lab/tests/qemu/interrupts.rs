//! How devices tell the guest that there is something to do, and that it halts until then.

use crate::support::{Machine, config, start, start_and_see, turn};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Vm};
use std::{thread, time::Duration};

/// Resizes until the device has rung for one, or so often that it does not ring.
fn rings(vm: &mut Machine) -> bool {
    (1..=5).any(|n| vm.resize_checked(Bytes::gib(n)).rang)
}

#[test]
fn virtio_mem_rings_by_its_line_or_is_looked_at() {
    // QEMU's virtio-mem need not have messages, and interrupts by its line then.
    for (mode, expected) in
        [("msix", &["msix", "intx"][..]), ("intx", &["intx"]), ("poll", &["poll"])]
    {
        let (mut vm, interrupts) = start_and_see(&config(Bytes::gib(64)).with("interrupts", mode));
        assert!(expected.contains(&interrupts.as_str()), "{mode}: {interrupts}");
        assert_eq!(rings(&mut vm), mode != "poll", "{mode}");
        assert_idle(vm.pid());
    }
}

#[test]
fn an_idle_guest_leaves_the_cpu_alone() {
    let mut vm = start(&config(Bytes::gib(64)));
    assert_idle(vm.pid());
    vm.resize_checked(Bytes::gib(64));
    assert_idle(vm.pid());
}

#[test]
fn a_device_with_messages_uses_them() {
    for mode in ["msix", "intx", "poll"] {
        let _turn = turn();
        let config = config(Bytes::ZERO).with("interrupts", mode).with("exit", "size:0");
        let mut vm =
            Vm::start(&Config { other_devices: vec!["virtio-rng-pci"], ..config }).unwrap();
        let answer = |event: &Event| match event {
            Event::Entropy { interrupts, rang, bytes, .. } => {
                Some((interrupts.clone(), *rang, *bytes))
            }
            _ => None,
        };
        let (answer, _) = vm.wait("answer", answer).unwrap();
        assert_eq!(answer, (mode.to_owned(), mode != "poll", 64));
        vm.finish().unwrap();
    }
}

/// Fails if QEMU, whose guest has nothing to do, uses 2 % of a CPU.
fn assert_idle(qemu: u32) {
    let period = Duration::from_secs(3);
    let before = cpu_time(qemu);
    thread::sleep(period);
    let used = cpu_time(qemu) - before;
    assert!(used < period.mul_f64(0.02), "{used:?} in {period:?}");
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
