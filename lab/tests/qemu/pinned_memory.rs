//! Tests that memory that is pinned for a device is not given to the host by reports, by a balloon
//! or by hints, while free memory is given.
//!
//! QEMU's device `edu` writes to the pinned memory and reads it. The guest fails if the data have
//! changed.

use crate::balloon::reported;
use crate::live_migration::{MigrationFile, wait_until_migrated};
use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Balloon, Config, Event, Vm},
    resident,
};
use std::{thread, time::Duration};

/// The size of the first part, which is pinned at the start, and of the second part, which is
/// pinned after the host has taken its memory.
const PART_SIZE: Bytes = Bytes::mib(16);
/// The least change of QEMU's resident memory when the host takes or commits a part. It is less
/// than [`PART_SIZE`], because QEMU may allocate and free memory of its own meanwhile.
const MIN_CHANGE: Bytes = Bytes::mib(12);

fn with_edu(balloon: Balloon) -> Config {
    let config = config(Bytes::gib(1))
        .with_guest_option("dma", PART_SIZE.0)
        .with_guest_option("exit", "size:2M");
    Config { balloon, other_device_options: vec!["edu"], ..config }
}

/// Waits until the guest has checked the pinned memory. Returns the pinned size, and the size of
/// the unpinned memory that still has the device's data.
fn wait_for_check(vm: &mut Vm) -> (Bytes, Bytes) {
    let pinned = |event: &Event| match *event {
        Event::Pinned { pinned, left, .. } => Some((Bytes(pinned), Bytes(left))),
        _ => None,
    };
    vm.wait("check of pinned memory", pinned).unwrap().0
}

fn resident_memory(vm: &Vm) -> Bytes {
    resident::proportional(vm.pid()).expect("QEMU has ended")
}

#[test]
fn pinned_memory_is_not_reported_or_inflated_and_reported_memory_can_be_pinned() {
    let mut vm = Vm::start(&with_edu(Balloon::Reports)).unwrap();
    let (pinned, intact) = wait_for_check(&mut vm);
    assert_eq!(pinned, PART_SIZE);
    assert!(intact > Bytes::ZERO, "the unpinned part was reported before the first check");
    // All other memory is free, and the guest reports it to the host. QEMU's resident memory does
    // not show this: the host may have taken the memory before the test can look at it.
    let (reported, _) = vm.wait("reports", reported).unwrap();
    assert!(Bytes(reported) >= PART_SIZE, "{}", Bytes(reported));
    vm.monitor_line("balloon 64").unwrap();
    assert_eq!(wait_for_check(&mut vm), (PART_SIZE, Bytes::ZERO), "the host has the unpinned part");
    let with_one_part = resident_memory(&vm);
    // When the balloon is deflated, the guest pins the second part.
    vm.monitor_line("balloon 128").unwrap();
    assert_eq!(wait_for_check(&mut vm), (PART_SIZE + PART_SIZE, Bytes::ZERO));
    assert!(
        resident_memory(&vm) >= with_one_part + MIN_CHANGE,
        "{with_one_part} before, {} now",
        resident_memory(&vm)
    );
    // The device writes to the second part, and the next check finds the data.
    for guest_mib in [96, 80] {
        vm.monitor_line(&format!("balloon {guest_mib}")).unwrap();
        assert_eq!(wait_for_check(&mut vm), (PART_SIZE + PART_SIZE, Bytes::ZERO));
    }
    thread::sleep(Duration::from_secs(1));
    assert!(
        resident_memory(&vm) >= with_one_part + MIN_CHANGE,
        "{with_one_part} before, {} later",
        resident_memory(&vm)
    );
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn pinned_memory_is_not_hinted() {
    let config = with_edu(Balloon::Everything)
        .with_guest_option("interrupts", "poll")
        .with_guest_option("reports", "off");
    let mut source = Vm::start(&config).unwrap();
    let ranges = |event: &Event| match *event {
        Event::Pinned { addr, other, .. } => Some((addr, other)),
        _ => None,
    };
    let ((pinned, unpinned), _) = source.wait("check of pinned memory", ranges).unwrap();
    // QEMU sends pages in the order of their addresses, and a page of zeroes takes 9 bytes. So even
    // on a busy machine, the hints come before QEMU has sent the pages up to the second part.
    source.monitor_line("migrate_set_parameter max-bandwidth 1k").unwrap();
    let file = MigrationFile::begin(&mut source);
    let mut remaining = Bytes::mib(64).0;
    while remaining > 0 {
        let hinted = |event: &Event| match *event {
            Event::Reported { hinted, .. } => Some(hinted),
            _ => None,
        };
        remaining = remaining.saturating_sub(source.wait("hints", hinted).unwrap().0);
    }
    source.monitor_line("stop").unwrap();
    source.monitor_line("migrate_set_parameter max-bandwidth 1g").unwrap();
    wait_until_migrated(&mut source);
    let incoming = Some(file.0.clone());
    let mut destination = Vm::start(&Config { incoming_state: incoming, ..config }).unwrap();
    wait_until_migrated(&mut destination);
    // QEMU does not send hinted memory, so only the pinned part has the device's data.
    for block in 0..PART_SIZE.0 / Bytes::mib(2).0 {
        let mut word = |range| {
            let address = range + block * Bytes::mib(2).0 + 77 * 4096;
            destination.query_monitor(&format!("xp /1gx {address:#x}")).unwrap()
        };
        assert!(word(pinned).contains("0xffffffff00000000"), "{block}: {}", word(pinned));
        assert!(word(unpinned).contains("0x0000000000000000"), "{block}: {}", word(unpinned));
    }
}
