//! Tests of machine checks, which QEMU's monitor injects.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Event, Vm};

/// Injects the machine check of a patrol scrub that has found an uncorrectable error at `address`.
fn inject(vm: &mut Vm, address: u64) -> Result<(), Error> {
    vm.monitor_line(&format!("mce 0 1 0xbd000000000000c0 5 {address:#x} 0x8c"))
}

/// Waits until the guest has quarantined the frame at `address`. Returns whether it was in use.
fn was_in_use(vm: &mut Vm, address: u64) -> bool {
    let bad_frame = |event: &Event| match *event {
        Event::BadFrame { addr, was_in_use } => (addr == address).then_some(was_in_use),
        _ => None,
    };
    vm.wait("bad frame", bad_frame).unwrap().0
}

#[test]
fn bad_frames_are_quarantined_whether_they_are_free_or_in_use() {
    let size = Bytes::mib(128);
    let config =
        config(Bytes::gib(1)).with_touched_memory(size).with_guest_option("exit", "size:2M");
    let mut vm = Vm::start(&config).unwrap();
    let device_address = |event: &Event| match *event {
        Event::Device { addr, .. } => Some(addr),
        _ => None,
    };
    let region = vm.wait("device", device_address).unwrap().0;
    vm.resize(size).unwrap();
    vm.wait("touching", crate::balloon::touched).unwrap();
    // The workload has touched all of the plugged memory.
    for address in [region, region + 0x5_5000, region + 0x700_0000] {
        inject(&mut vm, address).unwrap();
        assert!(was_in_use(&mut vm, address));
    }
    vm.resize(Bytes::ZERO).unwrap();
    // Most of the boot memory is free.
    let free = 64 << 20;
    inject(&mut vm, free).unwrap();
    assert!(!was_in_use(&mut vm, free));
    vm.resize(size).unwrap();
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn the_guest_ends_if_the_memory_of_its_kernel_is_bad() {
    let mut vm = Vm::start(&Config { ..config(Bytes::gib(1)) }).unwrap();
    let device = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", device).unwrap();
    // The kernel's image begins at 1 MiB.
    let injected = inject(&mut vm, 1 << 20);
    // The guest may end before the monitor answers.
    let error = injected.and_then(|()| vm.wait("end", |_| None::<()>)).unwrap_err();
    assert!(matches!(&error, Error::BailOut(why) if why.contains("machine check")), "{error}");
}
