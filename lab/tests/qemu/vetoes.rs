//! A guest whose kernel does not want memory online, or does not let it go: it says so, tries
//! again, and does not call a size reached that it has not got.

use crate::support::{Machine, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::Event;

const SIZE: Bytes = Bytes::gib(1);
const REASON: &str = "the command line asks for a veto";

/// Waits until the guest says that its kernel refuses; no resize may have come before.
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
    // More than the driver takes for a short delay.
    let mut vm = start(&config(SIZE).with("vetoes", 10).with("exit", "size:2M"));
    vm.request(SIZE).unwrap();
    assert_eq!(refused(&mut vm), SIZE);
    vm.resize_checked(SIZE);
    vm.finish(Bytes::mib(2));
}

#[test]
fn what_is_refused_for_good_can_leave() {
    let mut vm = start(&config(SIZE).with("vetoes", u32::MAX));
    vm.request(SIZE).unwrap();
    assert_eq!(refused(&mut vm), SIZE);
    vm.resize_checked(Bytes::ZERO);
    vm.request(Bytes::mib(512)).unwrap();
    assert_eq!(refused(&mut vm), Bytes::mib(512));
}
