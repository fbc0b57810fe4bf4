//! Tests of a guest whose kernel refuses to bring memory online. The guest reports the refusal,
//! tries again, and reports the end of the resize only when the memory is online.

use crate::support::{Machine, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::Event;

const SIZE: Bytes = Bytes::gib(1);
const REASON: &str = "the command line asks for a veto";

/// Waits for the report of a refusal, and returns the plugged size. Panics if a resize ends before.
fn wait_for_refusal(vm: &mut Machine) -> Bytes {
    let refused = |event: &Event| match event {
        Event::Pending { reason, plugged, .. } if reason.contains(REASON) => Some(Bytes(*plugged)),
        Event::Resized { target, .. } => panic!("the resize to {target} has ended"),
        _ => None,
    };
    vm.wait("refusal", refused).unwrap().0
}

#[test]
fn a_refusal_to_online_memory_is_reported_and_onlining_is_tried_again() {
    // Ten refusals take longer than the driver's short delays between tries.
    let mut vm =
        start(&config(SIZE).with_guest_option("vetoes", 10).with_guest_option("exit", "size:2M"));
    vm.request(SIZE).unwrap();
    assert_eq!(wait_for_refusal(&mut vm), SIZE);
    vm.resize_checked(SIZE);
    vm.finish(Bytes::mib(2));
}

#[test]
fn memory_that_the_kernel_refuses_to_online_can_be_unplugged() {
    let mut vm = start(&config(SIZE).with_guest_option("vetoes", u32::MAX));
    vm.request(SIZE).unwrap();
    assert_eq!(wait_for_refusal(&mut vm), SIZE);
    vm.resize_checked(Bytes::ZERO);
    vm.request(Bytes::mib(512)).unwrap();
    assert_eq!(wait_for_refusal(&mut vm), Bytes::mib(512));
}
