//! Tests that memory pinned for a device is not given to the host while free memory is.
//!
//! QEMU's `edu` device writes to the pinned memory and reads it; the guest fails if anything is
//! lost.

use crate::balloon::shrinks_to;
use crate::live_migration::{Migrated, wait_until_migrated};
use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Balloon, Config, Event, Vm},
    resident,
};
use std::{thread, time::Duration};

/// The size of the part that is pinned from the start, and of the part that is pinned after the
/// host has taken it.
const EACH: Bytes = Bytes::mib(16);
/// [`EACH`] less what QEMU may use or free for itself meanwhile.
const MOST_OF_IT: Bytes = Bytes::mib(12);

fn with_edu(balloon: Balloon) -> Config {
    let config = config(Bytes::gib(1)).with("dma", EACH.0).with("exit", "size:2M");
    Config { balloon, other_devices: vec!["edu"], ..config }
}

/// Waits for a check by the guest. Returns how much is pinned, and how much of the unpinned memory
/// still holds what the device wrote.
fn wait_for_check(vm: &mut Vm) -> (Bytes, Bytes) {
    let pinned = |event: &Event| match *event {
        Event::Pinned { pinned, left, .. } => Some((Bytes(pinned), Bytes(left))),
        _ => None,
    };
    vm.wait("look at pinned memory", pinned).unwrap().0
}

fn held(vm: &Vm) -> Bytes {
    resident::proportional(vm.pid()).expect("QEMU runs")
}

#[test]
fn pinned_memory_is_not_reported_or_inflated_and_reported_memory_can_be_pinned() {
    let mut vm = Vm::start(&with_edu(Balloon::Reports)).unwrap();
    let (pinned, left) = wait_for_check(&mut vm);
    assert_eq!(pinned, EACH);
    assert!(left > Bytes::ZERO, "nothing has been reported yet");
    // All other memory is free and is taken by the host.
    shrinks_to(&vm, held(&vm) - MOST_OF_IT);
    vm.monitor_line("balloon 64").unwrap();
    assert_eq!(wait_for_check(&mut vm), (EACH, Bytes::ZERO), "the host has what is not pinned");
    let without = held(&vm);
    // The guest then pins the other part.
    vm.monitor_line("balloon 128").unwrap();
    assert_eq!(wait_for_check(&mut vm), (EACH + EACH, Bytes::ZERO));
    assert!(held(&vm) >= without + MOST_OF_IT, "{without} before, {} now", held(&vm));
    // The device now writes to it, and the next check finds the data.
    for left in [96, 80] {
        vm.monitor_line(&format!("balloon {left}")).unwrap();
        assert_eq!(wait_for_check(&mut vm), (EACH + EACH, Bytes::ZERO));
    }
    thread::sleep(Duration::from_secs(1));
    assert!(held(&vm) >= without + MOST_OF_IT, "{without} before, {} later", held(&vm));
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn pinned_memory_is_not_hinted() {
    let config = with_edu(Balloon::Everything).with("interrupts", "poll").with("reports", "off");
    let mut source = Vm::start(&config).unwrap();
    let ranges = |event: &Event| match *event {
        Event::Pinned { addr, other, .. } => Some((addr, other)),
        _ => None,
    };
    let ((pinned, other), _) = source.wait("look at pinned memory", ranges).unwrap();
    source.monitor_line("migrate_set_parameter max-bandwidth 128k").unwrap();
    let file = Migrated::begin(&mut source);
    let mut left = Bytes::mib(64).0;
    while left > 0 {
        let hinted = |event: &Event| match *event {
            Event::Reported { hinted, .. } => Some(hinted),
            _ => None,
        };
        left = left.saturating_sub(source.wait("hints", hinted).unwrap().0);
    }
    source.monitor_line("stop").unwrap();
    source.monitor_line("migrate_set_parameter max-bandwidth 1g").unwrap();
    wait_until_migrated(&mut source);
    let incoming = Some(file.0.clone());
    let mut destination = Vm::start(&Config { incoming, ..config }).unwrap();
    wait_until_migrated(&mut destination);
    // Hinted memory is not sent, so the old contents are found only in the pinned part.
    for block in 0..EACH.0 / Bytes::mib(2).0 {
        let mut word = |range| {
            let at = range + block * Bytes::mib(2).0 + 77 * 4096;
            destination.ask_monitor(&format!("xp /1gx {at:#x}")).unwrap()
        };
        assert!(word(pinned).contains("0xffffffff00000000"), "{block}: {}", word(pinned));
        assert!(word(other).contains("0x0000000000000000"), "{block}: {}", word(other));
    }
}
