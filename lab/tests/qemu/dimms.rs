//! Tests of DIMMs, which QEMU adds and removes by ACPI's memory slots.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Dimm, Event, Vm};
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::SliceRandom};

/// Returns a PC with two nodes, no virtio-mem device and ten memory slots.
fn slots(exit: &str) -> Config {
    with_slots(config(Bytes::ZERO), exit)
}

/// Adds two nodes and ten memory slots to a machine.
fn with_slots(config: Config, exit: &str) -> Config {
    let nodes = vec![config.boot_memory, Bytes::ZERO];
    Config { nodes, memory_slots: 10, ..config.with_guest_option("exit", exit) }
}

fn boot(config: &Config) -> Vm {
    let mut vm = Vm::start(config).unwrap();
    vm.wait("boot", |event| matches!(event, Event::Boot { .. }).then_some(())).unwrap();
    vm
}

fn insert(vm: &mut Vm, name: &str, mib: u64, node: u32) {
    vm.insert_dimm(name, Bytes::mib(mib), node).unwrap();
}

fn wait_added(vm: &mut Vm) -> Dimm {
    vm.wait_for_added_dimm().unwrap().0
}

/// Waits until the guest has refused a DIMM. Returns its slot and the guest's reason.
fn wait_refused(vm: &mut Vm) -> (u32, String) {
    let refused = |event: &Event| match event {
        Event::DimmRefused { slot, why } => Some((*slot, why.clone())),
        _ => None,
    };
    vm.wait("refusal of a DIMM", refused).unwrap().0
}

/// Returns the number of DIMMs that QEMU has.
fn dimms_of_host(vm: &mut Vm) -> usize {
    vm.query_monitor("info memory-devices").unwrap().matches("Memory device [dimm]").count()
}

/// Returns the DIMMs that QEMU has, in the order of their slots.
fn list_of_host(vm: &mut Vm) -> Vec<Dimm> {
    let list = vm.query_monitor("info memory-devices").unwrap();
    let devices = list.split("Memory device [").filter(|device| device.starts_with("dimm]"));
    let field = |device: &str, name: &str| -> u32 {
        let mut lines = device.lines().filter_map(|line| line.trim().strip_prefix(name));
        lines.next().and_then(|value| value.trim().parse().ok()).unwrap()
    };
    let mut dimms: Vec<_> = devices
        .map(|device| Dimm {
            slot: field(device, "slot:"),
            size: Bytes(field(device, "size:").into()),
            node: field(device, "node:"),
        })
        .collect();
    dimms.sort_by_key(|dimm| dimm.slot);
    dimms
}

/// Adds 16 DIMMs of random sizes on four nodes and removes them in random order, while a virtio-mem
/// device is resized. The guest and QEMU agree after each step.
#[test]
fn sixteen_dimms_come_and_go_in_random_order_beside_a_virtio_mem_device() {
    let rounds = if std::env::var_os("HOTMEM_DEEP").is_some() { 100 } else { 2 };
    let (device, last) = (Bytes::gib(1), Bytes::mib(6));
    let config = config(device).with_touched_memory(Bytes::mib(64));
    let mut machine = start(&Config {
        nodes: vec![Bytes::mib(128), Bytes::ZERO, Bytes::ZERO, Bytes::ZERO],
        memory_slots: 16,
        max_memory: Some(Bytes::gib(32)),
        ..config.with_guest_option("exit", format!("size:{}", last.0))
    });
    let mut random = SmallRng::seed_from_u64(44);
    let mut blocks = 4;
    for round in 0..rounds {
        let mut present: Vec<(String, u32)> = Vec::new();
        let mut expected: Vec<Dimm> = Vec::new();
        let mut steps = [vec![true; 16], vec![false; 16]].concat();
        steps[8..24].shuffle(&mut random);
        for (step, adds) in steps.into_iter().enumerate() {
            if adds {
                let name = format!("{round}.{step}");
                let (mib, node) = (random.random_range(1..=4) * 128, random.random_range(0..4));
                insert(&mut machine, &name, mib, node);
                let added = wait_added(&mut machine);
                assert_eq!((added.size, added.node), (Bytes::mib(mib), node));
                present.push((name, added.slot));
                expected.push(added);
            } else {
                let (name, slot) = present.swap_remove(random.random_range(0..present.len()));
                machine.remove_dimm(&name).unwrap();
                assert_eq!(machine.wait_for_removed_dimm().unwrap().0, slot);
                machine.free_dimm(&name).unwrap();
                expected.retain(|dimm| dimm.slot != slot);
            }
            expected.sort_by_key(|dimm| dimm.slot);
            assert_eq!(list_of_host(&mut machine), expected, "round {round}, step {step}");
            if step % 4 == 0 {
                // Another size, because the device announces no request for the size that it has.
                blocks = 4 + (blocks - 4 + random.random_range(1..509)) % 509;
                machine.resize(Bytes::mib(2 * blocks)).unwrap();
            }
        }
    }
    machine.finish(last);
}

#[test]
fn dimms_are_added_used_and_removed_and_their_slots_are_used_again() {
    for machine in ["q35", "pc"] {
        check_that_slots_are_used_again(Config { machine, ..config(Bytes::ZERO) });
    }
}

/// Checks DIMMs of a machine that has no other memory to add.
pub(crate) fn check_that_slots_are_used_again(config: Config) {
    let config = with_slots(config, "resizes:8").with_touched_memory(Bytes::mib(192));
    let mut vm = boot(&config);
    let mib = Bytes::mib;
    insert(&mut vm, "0", 256, 1);
    assert_eq!(wait_added(&mut vm), Dimm { slot: 0, size: mib(256), node: 1 });
    insert(&mut vm, "1", 128, 0);
    assert_eq!(wait_added(&mut vm), Dimm { slot: 1, size: mib(128), node: 0 });
    vm.remove_dimm("0").unwrap();
    let (slot, online) = vm.wait_for_removed_dimm().unwrap();
    assert_eq!(slot, 0);
    assert!(online > mib(255) && online <= mib(256), "{online}");
    assert_eq!(dimms_of_host(&mut vm), 1);
    // The slot gets another DIMM, of another size and on another node.
    insert(&mut vm, "2", 512, 0);
    assert_eq!(wait_added(&mut vm), Dimm { slot: 0, size: mib(512), node: 0 });
    for name in ["1", "2"] {
        vm.remove_dimm(name).unwrap();
        vm.wait_for_removed_dimm().unwrap();
    }
    assert_eq!(dimms_of_host(&mut vm), 0);
    // The guest handles an insertion and a removal whether or not it has seen the first before the
    // second comes.
    insert(&mut vm, "3", 128, 1);
    vm.remove_dimm("3").unwrap();
    vm.wait_for_removed_dimm().unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_dimm_that_is_present_at_the_start_is_added() {
    check_that_a_cold_dimm_is_added(config(Bytes::ZERO));
}

/// Checks a DIMM that a machine has at its start.
pub(crate) fn check_that_a_cold_dimm_is_added(config: Config) {
    let mut config = with_slots(config, "resizes:1");
    config.other_device_options = vec!["pc-dimm,id=dimm0,memdev=cold,node=1"];
    config.other_objects = vec!["memory-backend-ram,id=cold,size=256M"];
    let mut vm = boot(&config);
    let added = Dimm { slot: 0, size: Bytes::mib(256), node: 1 };
    assert_eq!(wait_added(&mut vm), added);
    vm.finish().unwrap();
}

#[test]
fn a_refused_dimm_is_ejected_and_a_dimm_in_use_is_kept_until_its_memory_can_move() {
    let config = slots("resizes:3").with_guest_option("vetoes", 1);
    let config = config.with_guest_option("release", "off").with_touched_memory(Bytes::mib(768));
    let mut vm = boot(&config);
    insert(&mut vm, "0", 128, 0);
    let (slot, why) = wait_refused(&mut vm);
    assert_eq!(slot, 0);
    assert!(why.contains("asks for a veto"), "{why}");
    vm.remove_dimm("0").unwrap();
    vm.wait_for_removed_dimm().unwrap();
    // A random run of each pageblock of the second DIMM is in use, more than fits into boot memory.
    insert(&mut vm, "1", 768, 0);
    wait_added(&mut vm);
    let touched = |event: &Event| matches!(event, Event::Touched { .. }).then_some(());
    vm.wait("touched memory", touched).unwrap();
    vm.remove_dimm("1").unwrap();
    let kept = |event: &Event| match event {
        Event::DimmKept { slot, why } => Some((*slot, why.clone())),
        _ => None,
    };
    let (slot, why) = vm.wait("refusal of the removal", kept).unwrap().0;
    assert_eq!(slot, 0);
    assert!(why.contains("free"), "{why}");
    assert_eq!(dimms_of_host(&mut vm), 1);
    // The third DIMM has room.
    insert(&mut vm, "2", 512, 1);
    wait_added(&mut vm);
    vm.remove_dimm("1").unwrap();
    assert_eq!(vm.wait_for_removed_dimm().unwrap().0, 0);
    vm.finish().unwrap();
}

#[test]
fn dimms_that_share_a_section_are_added_or_refused_with_a_reason() {
    let mut vm = boot(&slots("resizes:4"));
    insert(&mut vm, "0", 130, 0);
    wait_added(&mut vm);
    // QEMU places this DIMM right after the first, in a section that belongs to node 0.
    insert(&mut vm, "1", 2, 1);
    let (slot, why) = wait_refused(&mut vm);
    assert_eq!(slot, 1);
    assert!(why.contains("node"), "{why}");
    vm.remove_dimm("1").unwrap();
    vm.wait_for_removed_dimm().unwrap();
    insert(&mut vm, "2", 2, 0);
    wait_added(&mut vm);
    vm.remove_dimm("0").unwrap();
    vm.wait_for_removed_dimm().unwrap();
    vm.finish().unwrap();
}
