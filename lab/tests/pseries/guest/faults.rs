//! Tests in which the guest replaces return values of QEMU's firmware by errors. A request fails
//! with the error that its call of the firmware returned. Unless a test says otherwise, the machine is unchanged, and the next
//! request succeeds.

use super::{LMB, add, config, remove, remove_refused, wait_until_ready};
use hotmem::Bytes;
use hotmem_lab::pseries::{Config, Dimm, Event, HostEvent, Vm};

/// Returns a DIMM of two LMBs.
fn dimm() -> Dimm {
    Dimm::new("dimm", Bytes(2 * LMB.0))
}

/// Starts a machine whose guest injects `fault`.
fn start(fault: &str) -> (Vm, Config) {
    let config = config(Bytes::gib(9), 0)
        .with_guest_option("fault", fault)
        .with_guest_option("patience", 100);
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    (vm, config)
}

/// Adds the DIMM and removes it, which shows that the failed request has no later effect.
fn add_and_remove(vm: &mut Vm, config: &Config) {
    add(vm, &dimm(), config);
    remove(vm, &dimm(), config);
}

/// Each case is the fault, the error, and the number of LMBs whose connectors are not released.
#[test]
fn an_addition_fails_with_the_error_of_its_call() {
    for (fault, expected, unrestored) in [
        ("sense:1:-1", "connector 0x80000004: dr-entity-sense: status -1", 0),
        ("sense:2:-3", "connector 0x80000005: dr-entity-sense: status -3", 1),
        ("usable:1:-3", "connector 0x80000004: set usable: status -3", 0),
        ("unisolate:1:-1", "connector 0x80000004: unisolate: status -1", 0),
        ("unisolate:2:-9000", "connector 0x80000005: unisolate: status -9000", 1),
        ("configure:1:-1", "configure-connector: status -1; could not be undone", 1),
        ("configure:3:-9003", "configure-connector: status -9003; could not be undone", 1),
        ("configure:3:77", "configure-connector: status -1; could not be undone", 1),
        ("usable:1+:-2", "connector 0x80000004 was busy for too long", 0),
    ] {
        let (mut vm, config) = start(fault);
        let end = vm.plug(&dimm()).unwrap();
        let reason = end.reason.as_deref().unwrap_or_default();
        assert!(reason.contains(expected), "{fault}: {end:?}");
        let state = (end.assigned, end.online, end.unrestored, end.lost);
        assert_eq!(state, (0, config.boot_memory.0, unrestored, 0), "{fault}");
        let removal = vm.unplug("dimm").unwrap();
        assert_eq!(removal.host, HostEvent::Deleted("dimm".into()), "{fault}: {removal:?}");
        add_and_remove(&mut vm, &config);
    }
}

/// The guest can neither configure nor isolate the connector of the first LMB. It has already given
/// the other LMB of the DIMM back, and only a whole DIMM can be refused, so QEMU waits for the first
/// LMB.
#[test]
fn the_error_names_a_connector_that_is_never_configured() {
    let (mut vm, config) = start("configure:3+:9900");
    let end = vm.plug(&dimm()).unwrap();
    let reason = end.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("connector 0x80000004 was busy for too long"), "{end:?}");
    assert_eq!((end.online, end.unrestored), (config.boot_memory.0, 1));
    vm.request_removal("dimm").unwrap();
    let end = vm.request_end("end of the removal").unwrap();
    let reason = end.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("connector 0x80000004: isolate: status -3"), "{end:?}");
    assert_eq!((end.online, end.unrestored), (config.boot_memory.0, 0));
    assert_eq!(vm.dimms().unwrap().len(), 1);
}

#[test]
fn a_removal_fails_with_the_error_of_its_call_and_is_refused() {
    for (fault, expected) in [
        // The first two calls are made by the addition.
        ("sense:3:-1", "connector 0x80000004: dr-entity-sense: status -1"),
        ("sense:4:-3", "connector 0x80000005: dr-entity-sense: status -3"),
        ("isolate:1:-1", "connector 0x80000004: isolate: status -1"),
        ("unusable:1:-1", "connector 0x80000004: set unusable: status -1"),
        ("isolate:1+:-2", "connector 0x80000004 was busy for too long"),
        ("sense:3+:9905", "connector 0x80000004 was busy for too long"),
    ] {
        let (mut vm, config) = start(fault);
        add(&mut vm, &dimm(), &config);
        remove_refused(&mut vm, &dimm(), &config, expected);
        remove(&mut vm, &dimm(), &config);
        add_and_remove(&mut vm, &config);
    }
}

/// The first LMB is released before the release of the second fails, so the first is lost.
#[test]
fn a_removal_that_fails_at_the_second_lmb_reports_the_first_as_lost() {
    let (mut vm, config) = start("isolate:2:-1");
    add(&mut vm, &dimm(), &config);
    vm.request_removal("dimm").unwrap();
    let end = vm.request_end("end of the removal").unwrap();
    let reason = end.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("connector 0x80000005: isolate: status -1"), "{end:?}");
    let online = config.boot_memory.0 + LMB.0;
    assert_eq!((end.assigned, end.online, end.unrestored, end.lost), (1, online, 0, 1));
}

/// The guest drops the event. The host can remove the DIMM and plug it again.
#[test]
fn an_event_that_cannot_be_parsed_is_reported_and_changes_nothing() {
    for (fault, expected) in [
        ("event:1:short", "event log: the section at byte 72 claims 24 bytes"),
        ("event:1:version", "event log: version 5 is not 6"),
        ("event:1:-1", "check-exception: status -1"),
    ] {
        let (mut vm, config) = start(fault);
        vm.add(&dimm()).unwrap();
        let reason = vm.wait("the report of the invalid event", |event| match event {
            Event::Garbled { reason } => Some(reason.clone()),
            _ => None,
        });
        assert_eq!(reason.unwrap().0, expected);
        if fault == "event:1:-1" {
            // The next call of `check-exception` returns the same event.
            assert_eq!(vm.request_end("end of the addition").unwrap().lmbs, 2);
        }
        remove_in_any_state(&mut vm, &config);
        add_and_remove(&mut vm, &config);
    }
}

/// Removes the DIMM, whose LMBs the guest may or may not have added.
fn remove_in_any_state(vm: &mut Vm, config: &Config) {
    let removal = vm.unplug("dimm").unwrap();
    assert_eq!(removal.host, HostEvent::Deleted("dimm".into()), "{:?}", removal.end);
    assert_eq!((removal.end.assigned, removal.end.online), (0, config.boot_memory.0));
}

#[test]
fn an_event_about_a_connector_that_belongs_to_no_lmb_fails_and_changes_nothing() {
    let (mut vm, config) = start("event:1:foreign");
    let end = vm.plug(&dimm()).unwrap();
    let reason = end.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("0x10000000"), "{end:?}");
    assert_eq!((end.assigned, end.online), (0, config.boot_memory.0));
    remove_in_any_state(&mut vm, &config);
    add_and_remove(&mut vm, &config);
    // QEMU requests the removal of the DIMM, and the event names another connector, so the guest
    // cannot refuse the request for the DIMM.
    let (mut vm, config) = start("event:2:foreign");
    add(&mut vm, &dimm(), &config);
    vm.request_removal("dimm").unwrap();
    let end = vm.request_end("end of the removal").unwrap();
    assert!(end.reason.as_deref().unwrap_or_default().contains("0x10000000"), "{end:?}");
    super::check_memory(&mut vm, &end, &config);
}
