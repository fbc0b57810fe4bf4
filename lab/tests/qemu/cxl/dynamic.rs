//! Tests of dynamic capacity of CXL devices.

use super::{UNIT, end, machine};
use crate::support::wait_for_touched;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Cxl, CxlMemory, Event, Extent, ExtentChange, Reconfigured, Vm};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// The unit of the extents in the tests, and the number of units of a device.
const PART: Bytes = Bytes::mib(16);
const PARTS: usize = 16;

fn extent(part: usize, parts: usize) -> Extent {
    Extent { offset: bytes(part).0, size: bytes(parts) }
}

fn bytes(parts: usize) -> Bytes {
    Bytes(PART.0 * parts as u64)
}

/// Waits until the guest has added extents or given them back. Returns the memory that is online.
fn wait_for_changes(vm: &mut Vm, base: u64, expected: &[Extent], is_addition: bool) -> Bytes {
    let changes = expected.iter().map(|extent| {
        let (addr, change) = vm.wait_for_extent().unwrap();
        assert_eq!(addr, base + extent.offset);
        match change {
            ExtentChange::Added(Reconfigured { online, .. }) if is_addition => online,
            ExtentChange::Removed(Reconfigured { online, .. }) if !is_addition => online,
            other => panic!("{other:?}"),
        }
    });
    changes.last().unwrap()
}

/// Returns the reason why the guest has not done what a device asks for.
fn wait_for_kept(vm: &mut Vm) -> String {
    match vm.wait_for_extent().unwrap().1 {
        ExtentChange::Kept(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// Parts of a device are offered and asked back in random order, while another CPU allocates. After each
/// request the guest compares the extents with the device's list and with the engine.
#[test]
fn dynamic_capacity_comes_and_goes_in_random_order_while_memory_is_in_use() {
    let rounds = if std::env::var_os("HOTMEM_DEEP").is_some() { 2000 } else { 60 };
    let config = machine(Cxl::dynamic(&[UNIT])).with_guest_option("churn", "on");
    let mut vm = Vm::start(&Config { cpus: 2, ..config }).unwrap();
    let CxlMemory { addr: base, .. } = vm.wait_for_cxl().unwrap();
    let mut random = SmallRng::seed_from_u64(7);
    let mut is_present = [false; PARTS];
    let mut boot_memory = None;
    for round in 0..rounds {
        // One to three runs of parts that are all present, or all absent.
        let part = random.random_range(0..PARTS);
        let is_addition = !is_present[part];
        let longest = is_present[part..].iter().take_while(|&&one| one != is_addition).count();
        let parts = random.random_range(1..=longest);
        let wanted = match parts {
            1 | 2 => vec![extent(part, parts)],
            _ => vec![extent(part, 1), extent(part + 1, parts - 2), extent(part + parts - 1, 1)],
        };
        if is_addition {
            vm.add_capacity(0, &wanted).unwrap();
        } else {
            vm.release_capacity(0, &wanted).unwrap();
        }
        let online = wait_for_changes(&mut vm, base, &wanted, is_addition);
        is_present[part..part + parts].fill(is_addition);
        let present = bytes(is_present.iter().filter(|&&present| present).count());
        let rest = Bytes(online.0 - present.0);
        assert_eq!(*boot_memory.get_or_insert(rest), rest, "round {round}");
    }
    end(vm);
}

#[test]
fn extents_that_were_accepted_before_boot_are_ram_again_and_go_back() {
    let mut vm = Vm::start(&machine(Cxl::dynamic(&[UNIT]))).unwrap();
    let CxlMemory { addr: base, .. } = vm.wait_for_cxl().unwrap();
    let accepted = [extent(1, 2), extent(7, 1)];
    vm.add_capacity(0, &accepted).unwrap();
    wait_for_changes(&mut vm, base, &accepted, true);
    vm.reset().unwrap();
    assert_eq!(vm.wait_for_cxl().unwrap().addr, base);
    wait_for_changes(&mut vm, base, &accepted, true);
    vm.add_capacity(0, &[extent(10, 1)]).unwrap();
    wait_for_changes(&mut vm, base, &[extent(10, 1)], true);
    vm.release_capacity(0, &[extent(7, 1)]).unwrap();
    wait_for_changes(&mut vm, base, &[extent(7, 1)], false);
    end(vm);
}

#[test]
fn extents_that_are_vetoed_go_back_and_extents_in_use_stay() {
    let config = machine(Cxl::dynamic(&[UNIT])).with_touched_memory(UNIT);
    let config = config.with_guest_option("release", "off").with_guest_option("vetoes", 1);
    let mut vm = Vm::start(&Config { boot_memory: Bytes::mib(40), ..config }).unwrap();
    let CxlMemory { addr: base, .. } = vm.wait_for_cxl().unwrap();
    let offered = [extent(3, 10)];
    vm.add_capacity(0, &offered).unwrap();
    assert!(wait_for_kept(&mut vm).contains("asks for a veto"));
    vm.add_capacity(0, &offered).unwrap();
    wait_for_changes(&mut vm, base, &offered, true);
    // The guest uses a random run of each pageblock, more than fits into boot memory.
    wait_for_touched(&mut vm);
    vm.release_capacity(0, &offered).unwrap();
    assert!(wait_for_kept(&mut vm).contains("free elsewhere"));
    // With more memory elsewhere, it goes back.
    let more = [extent(0, 3), extent(13, 3)];
    vm.add_capacity(0, &more).unwrap();
    wait_for_changes(&mut vm, base, &more, true);
    vm.release_capacity(0, &[extent(3, 1)]).unwrap();
    wait_for_changes(&mut vm, base, &[extent(3, 1)], false);
    end(vm);
}

/// QEMU's log has room for 8 events. The ninth is lost, which is the end of the third request.
#[test]
fn lost_events_are_counted_and_all_others_are_handled() {
    let mut vm = Vm::start(&machine(Cxl::dynamic(&[UNIT]))).unwrap();
    let CxlMemory { addr: base, .. } = vm.wait_for_cxl().unwrap();
    let offers = [0, 4, 8].map(|part| [extent(part, 1), extent(part + 1, 1), extent(part + 2, 1)]);
    vm.pause().unwrap();
    for offer in &offers {
        vm.add_capacity(0, offer).unwrap();
    }
    vm.proceed().unwrap();
    let lost = |event: &Event| match *event {
        Event::CxlEventsLost { memory, count } => Some((memory, count)),
        _ => None,
    };
    assert_eq!(vm.wait("loss of events", lost).unwrap().0, (0, 1));
    let all = offers.concat();
    wait_for_changes(&mut vm, base, &all[..8], true);
    // The extent whose event was lost can be offered again, and the log is in order.
    vm.add_capacity(0, &all[8..]).unwrap();
    wait_for_changes(&mut vm, base, &all[8..], true);
    vm.release_capacity(0, &offers[2]).unwrap();
    wait_for_changes(&mut vm, base, &offers[2], false);
    end(vm);
}

/// Returns why a request has failed.
fn wait_for_failure(vm: &mut Vm) -> String {
    let failed = |event: &Event| match event {
        Event::CxlRequestFailed { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    vm.wait("failure of a request", failed).unwrap().0
}

#[test]
fn an_answer_that_a_device_refuses_ends_its_request_alone() {
    let offered = [extent(2, 3), extent(9, 1)];
    for refused in 1..=2 {
        let config = machine(Cxl::dynamic(&[UNIT])).with_guest_option("refused", refused);
        let mut vm = Vm::start(&config).unwrap();
        let CxlMemory { addr: base, .. } = vm.wait_for_cxl().unwrap();
        vm.add_capacity(0, &offered).unwrap();
        if refused == 1 {
            let reason = wait_for_failure(&mut vm);
            assert!(reason.contains("returned code"), "{reason}");
            // The device does not wait for another answer, and offers the same again.
            vm.add_capacity(0, &offered).unwrap();
        }
        wait_for_changes(&mut vm, base, &offered, true);
        vm.release_capacity(0, &offered).unwrap();
        if refused == 2 {
            wait_for_failure(&mut vm);
            // The memory has stayed, and the device asks for it again.
            vm.release_capacity(0, &offered).unwrap();
        }
        wait_for_changes(&mut vm, base, &offered, false);
        end(vm);
    }
}

#[test]
fn a_second_request_for_what_was_given_back_is_ignored_alone() {
    let mut vm = Vm::start(&machine(Cxl::dynamic(&[UNIT]))).unwrap();
    let CxlMemory { addr: base, .. } = vm.wait_for_cxl().unwrap();
    let (twice, other) = ([extent(1, 1)], [extent(5, 1)]);
    for one in [twice, other] {
        vm.add_capacity(0, &one).unwrap();
        wait_for_changes(&mut vm, base, &one, true);
    }
    vm.pause().unwrap();
    for one in [twice, twice, other] {
        vm.release_capacity(0, &one).unwrap();
    }
    vm.proceed().unwrap();
    wait_for_changes(&mut vm, base, &twice, false);
    let ignored = |event: &Event| match event {
        Event::CxlEventIgnored { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    let reason = vm.wait("event that is ignored", ignored).unwrap().0;
    assert!(reason.contains("not accepted"), "{reason}");
    wait_for_changes(&mut vm, base, &other, false);
    end(vm);
}
