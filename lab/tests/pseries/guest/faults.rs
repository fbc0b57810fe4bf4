//! Tests in which the guest replaces answers of QEMU's firmware by errors. Each request fails with
//! the error of its call, the machine is unchanged, and the next request succeeds.

use super::{LMB, added, config, ready, refused, removed};
use hotmem::Bytes;
use hotmem_lab::pseries::{Config, Dimm, Event, HostEvent, Vm};

/// Returns a DIMM of two LMBs.
fn dimm() -> Dimm {
    Dimm::new("dimm", Bytes(2 * LMB.0))
}

fn start(fault: &str) -> (Vm, Config) {
    let config = config(Bytes::gib(9), 0).with("fault", fault).with("patience", 100);
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    (vm, config)
}

/// Adds the DIMM and removes it, which shows that nothing is left of the failed request.
fn add_and_remove(vm: &mut Vm, config: &Config) {
    added(vm, &dimm(), config);
    removed(vm, &dimm(), config);
}

/// Each case is the fault, the error, and the number of connectors that QEMU does not take back by
/// itself.
#[test]
fn an_addition_fails_with_the_error_of_its_call() {
    for (fault, why, unrestored) in [
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
        let done = vm.plug(&dimm()).unwrap();
        let said = done.why.as_deref().unwrap_or_default();
        assert!(said.contains(why), "{fault}: {done:?}");
        let left = (done.assigned, done.online, done.unrestored, done.lost);
        assert_eq!(left, (0, config.boot_memory.0, unrestored, 0), "{fault}");
        let removal = vm.unplug("dimm").unwrap();
        assert_eq!(removal.host, HostEvent::Deleted("dimm".into()), "{fault}: {removal:?}");
        add_and_remove(&mut vm, &config);
    }
}

/// The connector cannot be isolated either. QEMU has already taken the DIMM's other LMB, so nothing
/// tells it that the DIMM stays, and it goes on waiting.
#[test]
fn the_error_names_a_connector_that_is_never_configured() {
    let (mut vm, config) = start("configure:3+:9900");
    let done = vm.plug(&dimm()).unwrap();
    let why = done.why.as_deref().unwrap_or_default();
    assert!(why.contains("connector 0x80000004 was busy for too long"), "{done:?}");
    assert_eq!((done.online, done.unrestored), (config.boot_memory.0, 1));
    vm.ask_back("dimm").unwrap();
    let done = vm.done("end of the removal").unwrap();
    let why = done.why.as_deref().unwrap_or_default();
    assert!(why.contains("connector 0x80000004: isolate: status -3"), "{done:?}");
    assert_eq!((done.online, done.unrestored), (config.boot_memory.0, 0));
    assert_eq!(vm.dimms().unwrap().len(), 1);
}

#[test]
fn a_removal_fails_with_the_error_of_its_call_and_is_refused() {
    for (fault, why) in [
        // The first two calls belong to the addition.
        ("sense:3:-1", "connector 0x80000004: dr-entity-sense: status -1"),
        ("sense:4:-3", "connector 0x80000005: dr-entity-sense: status -3"),
        ("isolate:1:-1", "connector 0x80000004: isolate: status -1"),
        ("unusable:1:-1", "connector 0x80000004: set unusable: status -1"),
        ("isolate:1+:-2", "connector 0x80000004 was busy for too long"),
        ("sense:3+:9905", "connector 0x80000004 was busy for too long"),
    ] {
        let (mut vm, config) = start(fault);
        added(&mut vm, &dimm(), &config);
        refused(&mut vm, &dimm(), &config, why);
        removed(&mut vm, &dimm(), &config);
        add_and_remove(&mut vm, &config);
    }
}

/// The first LMB is released before the second fails, and is reported as lost.
#[test]
fn a_removal_that_fails_half_way_reports_lost_lmbs() {
    let (mut vm, config) = start("isolate:2:-1");
    added(&mut vm, &dimm(), &config);
    vm.ask_back("dimm").unwrap();
    let done = vm.done("end of the removal").unwrap();
    let why = done.why.as_deref().unwrap_or_default();
    assert!(why.contains("connector 0x80000005: isolate: status -1"), "{done:?}");
    let online = config.boot_memory.0 + LMB.0;
    assert_eq!((done.assigned, done.online, done.unrestored, done.lost), (1, online, 0, 1));
}

/// The event is lost. The host can ask for the DIMM back and plug it again.
#[test]
fn an_event_that_cannot_be_parsed_changes_nothing() {
    for (fault, why) in [
        ("event:1:short", "event log: the section at byte 72 claims 24 bytes"),
        ("event:1:version", "event log: version 5 is not 6"),
        ("event:1:-1", "check-exception: status -1"),
    ] {
        let (mut vm, config) = start(fault);
        vm.add(&dimm()).unwrap();
        let garbled = vm.wait("a word about the event", |event| match event {
            Event::Garbled { why } => Some(why.clone()),
            _ => None,
        });
        assert_eq!(garbled.unwrap().0, why);
        if fault == "event:1:-1" {
            // The next call returns the same event.
            assert_eq!(vm.done("end of the addition").unwrap().lmbs, 2);
        }
        removed_whatever_is_here(&mut vm, &config);
        add_and_remove(&mut vm, &config);
    }
}

fn removed_whatever_is_here(vm: &mut Vm, config: &Config) {
    let removal = vm.unplug("dimm").unwrap();
    assert_eq!(removal.host, HostEvent::Deleted("dimm".into()), "{:?}", removal.done);
    assert_eq!((removal.done.assigned, removal.done.online), (0, config.boot_memory.0));
}

/// The guest ignores an event about a connector that is not an LMB's.
#[test]
fn events_for_other_connectors_are_ignored() {
    let (mut vm, config) = start("event:1:foreign");
    let done = vm.plug(&dimm()).unwrap();
    let why = done.why.as_deref().unwrap_or_default();
    assert!(why.contains("0x10000000"), "{done:?}");
    assert_eq!((done.assigned, done.online), (0, config.boot_memory.0));
    removed_whatever_is_here(&mut vm, &config);
    add_and_remove(&mut vm, &config);
    // QEMU asks for the DIMM, and the event names another connector, for which the guest cannot
    // refuse either.
    let (mut vm, config) = start("event:2:foreign");
    added(&mut vm, &dimm(), &config);
    vm.ask_back("dimm").unwrap();
    let done = vm.done("end of the removal").unwrap();
    assert!(done.why.as_deref().unwrap_or_default().contains("0x10000000"), "{done:?}");
    super::agree(&mut vm, &done, &config);
}
