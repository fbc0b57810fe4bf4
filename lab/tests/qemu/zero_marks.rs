//! Tests of a kernel that knows which free memory the host has zeroed. The guest reads each frame
//! that is known to be zero when it allocates it, and fails if a byte of it is not.

use crate::balloon::{freed, reported};
use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Balloon, Config, Event, Vm};

const SIZE: Bytes = Bytes::mib(512);
/// Most of the memory that the guest fills after each plug.
const MOST: Bytes = Bytes::mib(192);

/// Returns the amounts of memory that were known to be zero, and that were not, if the event
/// reports them.
fn known_zero(event: &Event) -> Option<(u64, u64)> {
    match *event {
        Event::KnownZero { zero, other } => Some((zero, other)),
        _ => None,
    }
}

/// Starts a guest that fills 256 MiB after each plug, and then checks and frees them. Another CPU
/// allocates, fills, checks and frees memory all the time if `churn` is `on`.
fn start(zero: &str, churn: &str) -> Vm {
    let config = config(SIZE)
        .with_touched_memory(Bytes::mib(256))
        .with_guest_option("hold", "off")
        .with_guest_option("churn", churn)
        .with_guest_option("zero", zero)
        .with_guest_option("exit", "size:0");
    Vm::start(&Config { cpus: 2, balloon: Balloon::Reports, ..config }).unwrap()
}

/// Plugs `size`, and returns how much of the memory that is filled then is known to be zero, and
/// how much is not. Waits until most of it was reported.
fn plug(vm: &mut Vm, size: Bytes) -> (u64, u64) {
    vm.resize(size).unwrap();
    let (filled, _) = vm.wait("end of the work", freed).unwrap();
    assert!(filled >= MOST.0, "the other CPU has too much memory, {filled} are left");
    let (known, _) = vm.wait("known zeroes", known_zero).unwrap();
    let mut all_reported = 0;
    while all_reported < MOST.0 {
        all_reported += vm.wait("reports", reported).unwrap().0;
    }
    known
}

#[test]
fn reported_memory_is_zero_and_known_to_be() {
    let mut vm = start("reported", "off");
    // Nothing is known of memory that was just plugged, unless it was reported before it was
    // filled.
    let (zero, other) = plug(&mut vm, Bytes::mib(256));
    assert_eq!(zero + other, Bytes::mib(256).0);
    // All of the memory was reported, and 64 MiB are plugged after it.
    let (zero, other) = plug(&mut vm, Bytes::mib(320));
    assert_eq!(zero + other, Bytes::mib(256).0);
    assert!(zero >= Bytes::mib(128).0, "{zero} of {other}");
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

#[test]
fn memory_that_is_used_meanwhile_is_zero_if_it_is_known_to_be() {
    let mut vm = start("reported", "on");
    let mut all_zero = 0;
    for mib in [256, 384] {
        let (zero, other) = plug(&mut vm, Bytes::mib(mib));
        assert!(other > 0, "the other CPU has used dirty memory");
        all_zero += zero;
    }
    assert!(all_zero >= Bytes::mib(64).0, "{all_zero}");
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

/// QEMU's balloon does not say that it zeroes memory, although it does.
#[test]
fn nothing_is_known_of_memory_unless_the_device_or_the_operator_says_so() {
    const DEVICE_INIT_REPORTED: u64 = 1 << 6;
    let mut vm = start("device", "off");
    let features = |event: &Event| match *event {
        Event::Balloon { features, .. } => Some(features),
        _ => None,
    };
    let (features, _) = vm.wait("balloon", features).unwrap();
    assert_eq!(features.0 & DEVICE_INIT_REPORTED, 0);
    for mib in [256, 320] {
        assert_eq!(plug(&mut vm, Bytes::mib(mib)), (0, Bytes::mib(256).0));
    }
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}
