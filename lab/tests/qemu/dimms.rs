//! Tests of DIMMs, which QEMU adds and removes by ACPI's memory slots.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Vm};

/// A DIMM that the guest has brought online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Added {
    slot: u32,
    size: u64,
    node: u32,
}

/// Returns a machine with two nodes, no virtio-mem device and ten memory slots.
fn slots(exit: &str) -> Config {
    let nodes = vec![Bytes::mib(128), Bytes::ZERO];
    Config { nodes, ..config(Bytes::ZERO).with_guest_option("exit", exit) }
}

fn boot(config: &Config) -> (Vm, u64) {
    let mut vm = Vm::start(config).unwrap();
    let booted = |event: &Event| match *event {
        Event::Boot { boot_memory, .. } => Some(boot_memory),
        _ => None,
    };
    let (boot_memory, _) = vm.wait("boot", booted).unwrap();
    (vm, boot_memory)
}

fn insert(vm: &mut Vm, name: &str, size: &str, node: u32) {
    vm.monitor_line(&format!("object_add memory-backend-ram,id=mem{name},size={size}")).unwrap();
    let device = format!("device_add pc-dimm,id=dimm{name},memdev=mem{name},node={node}");
    vm.monitor_line(&device).unwrap();
}

fn remove(vm: &mut Vm, name: &str) {
    vm.monitor_line(&format!("device_del dimm{name}")).unwrap();
}

fn wait_added(vm: &mut Vm) -> Added {
    let added = |event: &Event| match *event {
        Event::DimmAdded { slot, size, node, .. } => Some(Added { slot, size, node }),
        _ => None,
    };
    vm.wait("DIMM", added).unwrap().0
}

/// Waits until the guest has refused a DIMM. Returns its slot and the guest's reason.
fn wait_refused(vm: &mut Vm) -> (u32, String) {
    let refused = |event: &Event| match event {
        Event::DimmRefused { slot, why } => Some((*slot, why.clone())),
        _ => None,
    };
    vm.wait("refusal of a DIMM", refused).unwrap().0
}

/// Waits until a DIMM was removed. Returns its slot, and the memory that is online.
fn wait_removed(vm: &mut Vm) -> (u32, u64) {
    let removed = |event: &Event| match *event {
        Event::DimmRemoved { slot, online, .. } => Some((slot, online)),
        _ => None,
    };
    vm.wait("removal of a DIMM", removed).unwrap().0
}

/// Returns the number of DIMMs that QEMU has.
fn dimms_of_host(vm: &mut Vm) -> usize {
    vm.query_monitor("info memory-devices").unwrap().matches("Memory device [dimm]").count()
}

#[test]
fn dimms_are_added_used_and_removed_and_their_slots_are_used_again() {
    let config = slots("resizes:8").with_touched_memory(Bytes::mib(192));
    let (mut vm, _) = boot(&config);
    let mib = |mib| Bytes::mib(mib).0;
    insert(&mut vm, "0", "256M", 1);
    assert_eq!(wait_added(&mut vm), Added { slot: 0, size: mib(256), node: 1 });
    insert(&mut vm, "1", "128M", 0);
    assert_eq!(wait_added(&mut vm), Added { slot: 1, size: mib(128), node: 0 });
    remove(&mut vm, "0");
    let (slot, online) = wait_removed(&mut vm);
    assert_eq!(slot, 0);
    assert!(online > mib(255) && online <= mib(256), "{online}");
    assert_eq!(dimms_of_host(&mut vm), 1);
    // The slot gets another DIMM, of another size and on another node.
    insert(&mut vm, "2", "512M", 0);
    assert_eq!(wait_added(&mut vm), Added { slot: 0, size: mib(512), node: 0 });
    for name in ["1", "2"] {
        remove(&mut vm, name);
        wait_removed(&mut vm);
    }
    assert_eq!(dimms_of_host(&mut vm), 0);
    // The guest handles an insertion and a removal whether or not it has seen the first before the
    // second comes.
    insert(&mut vm, "3", "128M", 1);
    remove(&mut vm, "3");
    wait_removed(&mut vm);
    vm.finish().unwrap();
}

#[test]
fn a_dimm_that_is_present_at_the_start_is_added() {
    let mut config = slots("resizes:1");
    config.other_device_options = vec!["pc-dimm,id=dimm0,memdev=cold,node=1"];
    config.other_objects = vec!["memory-backend-ram,id=cold,size=256M"];
    let (mut vm, _) = boot(&config);
    let added = Added { slot: 0, size: Bytes::mib(256).0, node: 1 };
    assert_eq!(wait_added(&mut vm), added);
    vm.finish().unwrap();
}

#[test]
fn a_refused_dimm_is_ejected_and_a_dimm_in_use_is_kept_until_its_memory_can_move() {
    let config = slots("resizes:3").with_guest_option("vetoes", 1);
    let config = config.with_guest_option("release", "off").with_touched_memory(Bytes::mib(768));
    let (mut vm, _) = boot(&config);
    insert(&mut vm, "0", "128M", 0);
    let (slot, why) = wait_refused(&mut vm);
    assert_eq!(slot, 0);
    assert!(why.contains("asks for a veto"), "{why}");
    remove(&mut vm, "0");
    wait_removed(&mut vm);
    // A random run of each pageblock of the second DIMM is in use, more than fits into boot memory.
    insert(&mut vm, "1", "768M", 0);
    wait_added(&mut vm);
    let touched = |event: &Event| matches!(event, Event::Touched { .. }).then_some(());
    vm.wait("touched memory", touched).unwrap();
    remove(&mut vm, "1");
    let kept = |event: &Event| match event {
        Event::DimmKept { slot, why } => Some((*slot, why.clone())),
        _ => None,
    };
    let (slot, why) = vm.wait("refusal of the removal", kept).unwrap().0;
    assert_eq!(slot, 0);
    assert!(why.contains("free"), "{why}");
    assert_eq!(dimms_of_host(&mut vm), 1);
    // The third DIMM has room.
    insert(&mut vm, "2", "512M", 1);
    wait_added(&mut vm);
    remove(&mut vm, "1");
    assert_eq!(wait_removed(&mut vm).0, 0);
    vm.finish().unwrap();
}

#[test]
fn dimms_that_share_a_section_are_added_or_refused_with_a_reason() {
    let (mut vm, _) = boot(&slots("resizes:4"));
    insert(&mut vm, "0", "130M", 0);
    wait_added(&mut vm);
    // QEMU places this DIMM right after the first, in a section that belongs to node 0.
    insert(&mut vm, "1", "2M", 1);
    let (slot, why) = wait_refused(&mut vm);
    assert_eq!(slot, 1);
    assert!(why.contains("node"), "{why}");
    remove(&mut vm, "1");
    wait_removed(&mut vm);
    insert(&mut vm, "2", "2M", 0);
    wait_added(&mut vm);
    remove(&mut vm, "0");
    wait_removed(&mut vm);
    vm.finish().unwrap();
}
