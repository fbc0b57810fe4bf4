//! Tests of a guest whose kernel refuses to bring memory online or to take it offline. The guest
//! reports the refusal, tries again, and does not report a size that it has not reached.

use crate::support::{Machine, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::Event;

const SIZE: Bytes = Bytes::gib(1);
const REASON: &str = "the command line asks for a veto";

/// Waits for the report of a refusal. No resize may have ended before.
fn refused(vm: &mut Machine) -> Bytes {
    let refused = |event: &Event| match event {
        Event::Pending { why, plugged, .. } if why.contains(REASON) => Some(Bytes(*plugged)),
        Event::Resized { target, .. } => panic!("{target} reached"),
        _ => None,
    };
    vm.wait("refusal", refused).unwrap().0
}

#[test]
fn a_refused_onlining_is_said_and_tried_again() {
    // Ten refusals last longer than the driver's short delays.
    let mut vm = start(&config(SIZE).with("vetoes", 10).with("exit", "size:2M"));
    vm.request(SIZE).unwrap();
    assert_eq!(refused(&mut vm), SIZE);
    vm.resize_checked(SIZE);
    vm.finish(Bytes::mib(2));
}

#[test]
fn memory_that_stays_offline_after_a_veto_can_be_unplugged() {
    let mut vm = start(&config(SIZE).with("vetoes", u32::MAX));
    vm.request(SIZE).unwrap();
    assert_eq!(refused(&mut vm), SIZE);
    vm.resize_checked(Bytes::ZERO);
    vm.request(Bytes::mib(512)).unwrap();
    assert_eq!(refused(&mut vm), Bytes::mib(512));
}
