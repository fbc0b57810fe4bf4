//! Tests of a kernel that another kernel starts without a reset of the machine, as kexec does.
//! Memory is already plugged when the second kernel boots.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Config, Error, Event, Vm},
    resident,
};

const SIZE: Bytes = Bytes::gib(1);
const PLUGGED: Bytes = Bytes::mib(512);

/// Returns a machine whose guest starts its own image as the next kernel after a resize. `first`
/// and `second` set the options of the two kernels.
fn two_kernels(first: impl Fn(Config) -> Config, second: impl Fn(Config) -> Config) -> Config {
    let mut config = first(config(SIZE).with_guest_option("exit", "resizes:1"));
    let second = second(crate::support::config(SIZE));
    config.append.push("--".to_owned());
    config.append.extend(second.append);
    let touched = config.touched_memory.max(second.touched_memory);
    Config { initrd: Some(config.kernel.clone()), touched_memory: touched, ..config }
}

/// Plugs memory into the first kernel, and waits until the second kernel has brought as much
/// online. Returns the number of requests of the second kernel.
fn plug_and_start_second_kernel(vm: &mut Vm) -> u64 {
    vm.resize(PLUGGED).unwrap();
    let handed_over = |event: &Event| match *event {
        Event::HandOver { plugged } => Some(Bytes(plugged)),
        _ => None,
    };
    assert_eq!(vm.wait("end of the first kernel", handed_over).unwrap().0, PLUGGED);
    let device = |event: &Event| match *event {
        Event::Device { plugged, requested, .. } => Some((Bytes(plugged), Bytes(requested))),
        _ => None,
    };
    assert_eq!(vm.wait("device", device).unwrap().0, (PLUGGED, PLUGGED));
    let resized = |event: &Event| match *event {
        Event::Resized { plugged, requests, .. } => Some((Bytes(plugged), requests)),
        _ => None,
    };
    let ((plugged, requests), _) = vm.wait("memory", resized).unwrap();
    assert_eq!((plugged, vm.device_size().unwrap()), (PLUGGED, PLUGGED));
    requests
}

/// Resizes the memory of the second kernel, and ends it.
fn resize_and_end_second_kernel(mut vm: Vm) {
    for target in [SIZE, Bytes::mib(256), Bytes::ZERO, PLUGGED] {
        vm.resize(target).unwrap();
        assert_eq!(vm.device_size().unwrap(), target);
    }
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

/// The size of plugged memory to which the first kernel writes.
const WRITTEN_SIZE: Bytes = Bytes::mib(256);
/// The limit of QEMU's resident memory if the guest has written to no plugged memory.
const MAX_RESIDENT_WITHOUT_WRITES: Bytes = Bytes::mib(160);

/// Returns a machine whose first kernel writes to plugged memory. `leftover` is the second kernel's
/// option for memory that is plugged when it boots.
fn after_writing(leftover: &str) -> Config {
    let first = |config: Config| config.with_touched_memory(WRITTEN_SIZE);
    let second = |config: Config| {
        config
            .with_touched_memory(Bytes::mib(64))
            .with_guest_option("exit", "size:2M")
            .with_guest_option("leftover", leftover)
    };
    two_kernels(first, second)
}

#[test]
fn the_second_kernel_adopts_plugged_memory() {
    let mut vm = Vm::start(&after_writing("adopt")).unwrap();
    plug_and_start_second_kernel(&mut vm);
    let resident = resident::proportional(vm.pid()).expect("QEMU has ended");
    assert!(resident >= WRITTEN_SIZE, "{resident}: the memory was unplugged");
    resize_and_end_second_kernel(vm);
}

#[test]
fn the_second_kernel_unplugs_plugged_memory_by_one_request() {
    let mut vm = Vm::start(&after_writing("unplug")).unwrap();
    // The first request unplugs all memory, and the second plugs the requested size.
    assert_eq!(plug_and_start_second_kernel(&mut vm), 2);
    let resident = resident::proportional(vm.pid()).expect("QEMU has ended");
    assert!(resident < MAX_RESIDENT_WITHOUT_WRITES, "{resident}: the memory was not unplugged");
    resize_and_end_second_kernel(vm);
}

#[test]
fn an_invalid_second_kernel_is_not_started() {
    let no_image = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let initrd = Some(no_image.into());
    let config = Config { initrd, ..two_kernels(|first| first, |second| second) };
    let error = Vm::start(&config).unwrap().wait("refusal", |_| None::<()>).unwrap_err();
    let reason = "not a 64-bit ELF";
    assert!(matches!(&error, Error::BailOut(found) if found.contains(reason)), "{error}");
}

#[test]
fn without_a_module_the_words_after_two_dashes_are_ignored() {
    let mut config = config(Bytes::ZERO).with_guest_option("exit", "boot");
    config.append.extend(["--", "hotmem.unknown"].map(str::to_owned));
    Vm::start(&config).unwrap().finish().unwrap();
}
