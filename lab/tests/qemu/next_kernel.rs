//! Tests of a kernel that another kernel starts without a reset of the machine (as by kexec):
//! memory is already plugged when it boots.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Config, Error, Event, Vm},
    resident,
};

const SIZE: Bytes = Bytes::gib(1);
const PLUGGED: Bytes = Bytes::mib(512);

/// Returns a machine whose guest starts its own image as the next kernel after a resize.
fn twice(first: impl Fn(Config) -> Config, then: impl Fn(Config) -> Config) -> Config {
    let mut config = first(config(SIZE).with("exit", "resizes:1"));
    let second = then(crate::support::config(SIZE));
    config.append.push("--".to_owned());
    config.append.extend(second.append);
    let touched = config.touched.max(second.touched);
    Config { initrd: Some(config.kernel.clone()), touched, ..config }
}

/// Plugs memory into the first kernel, and waits until the second has as much. Returns how many
/// requests that took.
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

/// The part of the plugged memory that the first kernel writes to.
const WRITTEN: Bytes = Bytes::mib(256);
/// QEMU and a guest that writes to no plugged memory hold less than this.
const LITTLE: Bytes = Bytes::mib(160);

fn after_writing(leftover: &str) -> Config {
    let first = |config: Config| config.touching(WRITTEN);
    let second = |config: Config| {
        config.touching(Bytes::mib(64)).with("exit", "size:2M").with("leftover", leftover)
    };
    twice(first, second)
}

#[test]
fn plugged_memory_is_adopted() {
    let mut vm = Vm::start(&after_writing("adopt")).unwrap();
    plug_and_start_second_kernel(&mut vm);
    let held = resident::proportional(vm.pid()).expect("QEMU runs");
    assert!(held >= WRITTEN, "{held}: it was plugged all the time");
    resize_and_end_second_kernel(vm);
}

#[test]
fn plugged_memory_is_unplugged_by_one_request() {
    let mut vm = Vm::start(&after_writing("unplug")).unwrap();
    // One request unplugs all, and one plugs what is requested.
    assert_eq!(plug_and_start_second_kernel(&mut vm), 2);
    let held = resident::proportional(vm.pid()).expect("QEMU runs");
    assert!(held < LITTLE, "{held}: the host has had what was plugged");
    resize_and_end_second_kernel(vm);
}

#[test]
fn an_invalid_kernel_is_not_started() {
    let no_image = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (initrd, reason) in [(None, "no module"), (Some(no_image.into()), "not a 64-bit ELF")] {
        let config = Config { initrd, ..twice(|first| first, |second| second) };
        let end = Vm::start(&config).unwrap().wait("refusal", |_| None::<()>).unwrap_err();
        assert!(matches!(&end, Error::BailOut(why) if why.contains(reason)), "{end}");
    }
}
