//! Tests of the guest on QEMU's pseries machine. They add and remove DIMMs whose memory the guest
//! uses, and check that the guest and QEMU report the same memory on each node.

mod faults;

use fastrand::Rng;
use hotmem::Bytes;
use hotmem_lab::{
    pseries::{Config, Dimm, Event, HostEvent, RequestEnd, SLOTS, Vm},
    qemu::image,
    resident::resident,
};
use std::env;

const LMB: Bytes = Bytes::mib(256);
/// The guest's reason for a refusal of memory with a pinned frame.
const PINNED_REASON: &str = "pinned by the kernel";

/// Returns a machine whose guest fills 8 MiB with patterns after each added DIMM, and ends after
/// `requests` requests.
fn config(max_memory: Bytes, requests: u32) -> Config {
    let kernel = image::find_pseries(None).unwrap();
    Config::new(kernel, max_memory)
        .with_guest_option("touch", Bytes::mib(8).0)
        .with_guest_option("exit", requests)
}

/// Waits until the guest has booted. Returns the number of its removable LMBs that are assigned.
fn wait_until_ready(vm: &mut Vm) -> u64 {
    let ready = vm.wait("kernel", |event| match *event {
        Event::Ready { assigned, lmb_size, .. } => Some((assigned, lmb_size)),
        _ => None,
    });
    let (assigned, lmb_size) = ready.unwrap().0;
    assert_eq!(lmb_size, LMB.0);
    assigned
}

/// Checks that the guest's memory on each node equals the memory that QEMU reports.
fn check_memory(vm: &mut Vm, end: &RequestEnd, config: &Config) {
    let dimms = vm.dimms().unwrap();
    let nodes = config.nodes.max(1);
    let boot_memory_per_node = config.boot_memory.0 / u64::from(nodes);
    let plugged_on = |node: u32| -> u64 {
        dimms.iter().filter(|dimm| dimm.node == node).map(|dimm| dimm.size.0).sum()
    };
    let plugged: u64 = dimms.iter().map(|dimm| dimm.size.0).sum();
    assert_eq!(end.assigned * LMB.0, plugged, "{end:?}");
    assert_eq!(end.online, config.boot_memory.0 + plugged, "{end:?}");
    for node in 0..nodes {
        let expected = boot_memory_per_node + plugged_on(node);
        assert_eq!(end.nodes[node as usize], expected, "node {node}: {end:?}");
    }
}

/// Adds a DIMM, and checks the guest's report and its memory.
fn add(vm: &mut Vm, dimm: &Dimm, config: &Config) -> RequestEnd {
    let end = vm.plug(dimm).unwrap();
    assert_eq!((end.change.as_str(), &end.reason), ("add", &None));
    assert_eq!(u64::from(end.lmbs), dimm.size.0 / LMB.0);
    assert_eq!(end.misplaced, 0);
    check_memory(vm, &end, config);
    end
}

/// Removes a DIMM, and checks the guest's report and its memory.
fn remove(vm: &mut Vm, dimm: &Dimm, config: &Config) {
    let removal = vm.unplug(&dimm.id).unwrap();
    assert_eq!(removal.host, HostEvent::Deleted(dimm.id.clone()), "{:?}", removal.end);
    assert_eq!(u64::from(removal.end.lmbs), dimm.size.0 / LMB.0);
    check_memory(vm, &removal.end, config);
}

/// Requests the removal of a DIMM that the guest refuses to release. Checks that the guest's reason
/// contains `expected` and that its memory is unchanged.
fn remove_refused(vm: &mut Vm, dimm: &Dimm, config: &Config, expected: &str) {
    let removal = vm.unplug(&dimm.id).unwrap();
    assert_eq!(removal.host, HostEvent::Refused(dimm.id.clone()), "{:?}", removal.end);
    let reason = removal.end.reason.as_deref().unwrap_or_default();
    assert!(reason.contains(expected), "{reason}");
    assert_eq!((removal.end.unrestored, removal.end.lost), (0, 0));
    check_memory(vm, &removal.end, config);
}

#[test]
fn dimms_are_added_and_removed_unless_a_frame_is_pinned() {
    let config = config(Bytes::gib(17), 7).with_guest_option("pin", 2);
    let config = Config { nodes: 2, ..config };
    let mut vm = Vm::start(&config).unwrap();
    assert_eq!(wait_until_ready(&mut vm), 0);
    let first = Dimm { node: 1, ..Dimm::new("first", Bytes::gib(1)) };
    let second = Dimm::new("second", Bytes::mib(512));
    let end = add(&mut vm, &first, &config);
    assert_eq!((end.by.as_str(), end.first, end.count), ("count-indexed", 0x8000_0004, 4));
    add(&mut vm, &second, &config);
    remove(&mut vm, &first, &config);
    // The guest pins a frame of each second DIMM. After the first refusal it unpins the frame.
    remove_refused(&mut vm, &second, &config, PINNED_REASON);
    remove(&mut vm, &second, &config);
    // The slot and the addresses of the first DIMM can be used again.
    add(&mut vm, &first, &config);
    remove(&mut vm, &first, &config);
    vm.finish().unwrap();
}

/// The kernel refuses a DIMM. The guest cannot release the DIMM's connectors, but the host can
/// remove the DIMM and add it again.
#[test]
fn a_dimm_that_the_kernel_refuses_can_be_removed_and_added_again() {
    let config =
        config(Bytes::gib(9), 4).with_guest_option("at_once", 1).with_guest_option("veto", 1);
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    let dimm = Dimm::new("dimm", Bytes::mib(512));
    let end = vm.plug(&dimm).unwrap();
    let reason = end.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("asks for a veto"), "{end:?}");
    assert_eq!((end.assigned, end.online, end.unrestored), (0, config.boot_memory.0, 2));
    remove(&mut vm, &dimm, &config);
    add(&mut vm, &dimm, &config);
    remove(&mut vm, &dimm, &config);
    vm.finish().unwrap();
}

#[test]
fn requests_by_count_skip_lmbs_without_memory() {
    let config = config(Bytes::gib(9), 2).with_guest_option("events", "off");
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    let far = Dimm { address: Some(Bytes::gib(4).0), ..Dimm::new("far", Bytes::mib(512)) };
    let end = add(&mut vm, &far, &config);
    // The request skips the LMBs from 1 to 4 GiB, which have no memory.
    assert_eq!((end.by.as_str(), end.count, end.skipped), ("count", 2, 12));
    let end = add(&mut vm, &Dimm::new("near", LMB), &config);
    assert_eq!((end.by.as_str(), end.count, end.skipped), ("count", 1, 0));
    vm.finish().unwrap();
}

#[test]
fn a_single_lmb_is_added_by_index_in_a_tree_of_version_1() {
    let config = config(Bytes::gib(9), 2)
        .with_guest_option("by_index", "on")
        .with_guest_option("version", 1);
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    let dimm = Dimm::new("dimm", LMB);
    let end = add(&mut vm, &dimm, &config);
    assert_eq!((end.by.as_str(), end.first), ("index", 0x8000_0004));
    remove(&mut vm, &dimm, &config);
    vm.finish().unwrap();
}

/// DIMMs that are plugged before the kernel negotiates with the firmware are assigned at boot, and
/// there is no event about them.
#[test]
fn dimms_plugged_before_the_negotiation_can_be_removed() {
    let config = config(Bytes::gib(9), 3);
    let cold = Dimm::new("cold", Bytes::mib(512));
    let config = Config { starts_stopped: true, dimms: vec![cold.clone()], ..config };
    let mut vm = Vm::start(&config).unwrap();
    let early = Dimm::new("early", LMB);
    vm.add(&early).unwrap();
    vm.start_cpus().unwrap();
    assert_eq!(wait_until_ready(&mut vm), 3);
    add(&mut vm, &Dimm::new("late", LMB), &config);
    remove(&mut vm, &early, &config);
    remove(&mut vm, &cold, &config);
    vm.finish().unwrap();
}

#[test]
fn events_during_a_request_are_handled_after_it() {
    const DIMMS: u32 = 6;
    let config = config(Bytes::gib(17), 2 * DIMMS).with_guest_option("at_once", 1);
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    let dimms: Vec<_> =
        (0..DIMMS).map(|nth| Dimm::new(format!("dimm{nth}"), Bytes::gib(1))).collect();
    dimms.iter().for_each(|dimm| vm.add(dimm).unwrap());
    let mut last = None;
    for _ in &dimms {
        let end = vm.request_end("end of an addition").unwrap();
        assert_eq!((end.lmbs, &end.reason), (4, &None));
        last = Some(end);
    }
    check_memory(&mut vm, &last.unwrap(), &config);
    dimms.iter().for_each(|dimm| vm.request_removal(&dimm.id).unwrap());
    for _ in &dimms {
        let end = vm.request_end("end of a removal").unwrap();
        assert_eq!((end.lmbs, &end.reason), (4, &None));
    }
    vm.finish().unwrap();
}

/// Memory that the guest reports or frees is returned to the host.
#[test]
fn the_guest_reports_its_free_memory_to_a_balloon_device() {
    const TOUCHED_MEMORY: Bytes = Bytes::mib(128);
    let config = config(Bytes::gib(5), 4).with_guest_option("touch", TOUCHED_MEMORY.0);
    let balloon = ["-device", "virtio-balloon-pci,id=balloon0,free-page-reporting=on"];
    let config = Config { more_args: balloon.map(str::to_owned).into(), ..config };
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    // A slow guest reports in several parts. The sum is at least 1 GiB less the 32 MiB that the
    // kernel may use.
    let resident_after_reports = |vm: &mut Vm| {
        let mut remaining = (Bytes::gib(1).0 - Bytes::mib(32).0).cast_signed();
        while remaining > 0 {
            let report = vm.wait("end of the reports", |event| match *event {
                Event::Reported { bytes, .. } => Some(bytes),
                _ => None,
            });
            remaining -= report.unwrap().0.cast_signed();
        }
        resident(vm.pid()).expect("QEMU runs")
    };
    resident_after_reports(&mut vm);
    let [first, second] = ["first", "second"].map(|id| Dimm::new(id, Bytes::gib(1)));
    vm.plug(&first).unwrap();
    // The guest reports the memory of the DIMM, except the part that it fills with patterns.
    let touched = vm.wait("patterns", |event| matches!(event, Event::Touched { .. }).then_some(()));
    touched.unwrap();
    let with_first = resident(vm.pid()).expect("QEMU runs");
    // The guest frees the filled part of the first DIMM and fills as much memory of the second.
    vm.plug(&second).unwrap();
    let with_second = resident_after_reports(&mut vm);
    let increase = with_second.0.saturating_sub(with_first.0);
    assert!(increase < TOUCHED_MEMORY.0 / 2, "{with_first} and then {with_second}");
    for dimm in [&first, &second] {
        remove(&mut vm, dimm, &config);
    }
    vm.finish().unwrap();
}

#[test]
fn an_overflow_of_the_guests_stack_ends_the_run_with_that_reason() {
    let mut vm = Vm::start(&config(Bytes::gib(8), 1).with_guest_option("overflow", "on")).unwrap();
    let error = vm.wait("event that does not occur", |_| None::<()>).unwrap_err().to_string();
    assert!(error.contains("the stack has overflowed"), "{error}");
}

/// A removal waits for frames that only the balloon's driver can give back, so the guest must step
/// the driver meanwhile.
#[test]
fn dimms_are_removed_while_the_balloon_holds_their_memory() {
    const DIMMS: u32 = 3;
    let config = config(Bytes::gib(9), 2 * DIMMS);
    let balloon = ["-device", "virtio-balloon-pci,id=balloon0,free-page-reporting=on"];
    let config = Config { more_args: balloon.map(str::to_owned).into(), ..config };
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    let dimms: Vec<_> =
        (0..DIMMS).map(|nth| Dimm::new(format!("dimm{nth}"), Bytes::gib(1))).collect();
    dimms.iter().for_each(|dimm| drop(add(&mut vm, dimm, &config)));
    // The argument is the size of the memory outside the balloon. Boot memory has room for all that
    // the balloon holds.
    vm.monitor_line("balloon 3584").unwrap();
    let inflated = |event: &Event| match *event {
        Event::Inflated { target, held } => Some((target, held)),
        _ => None,
    };
    let size = Bytes::mib(4096 - 3584).0;
    assert_eq!(vm.wait("balloon", inflated).unwrap().0, (size, size));
    dimms.iter().for_each(|dimm| remove(&mut vm, dimm, &config));
    vm.finish().unwrap();
}

/// The guest puts added memory online as movable memory, so that only boot memory can hold words, and
/// uses all free memory after each addition. Each DIMM needs words of its own. The engine has those for
/// the second one in its reserve, and the balloon has to return the others.
#[test]
fn a_balloon_returns_the_kernel_memory_that_an_addition_lacks() {
    const DIMMS: u32 = 4;
    let balloon = ["-device", "virtio-balloon-pci,id=balloon0,deflate-on-oom=on"];
    let config = Config {
        boot_memory: Bytes::mib(512),
        more_args: balloon.map(str::to_owned).into(),
        ..config(Bytes::gib(64), DIMMS).with_guest_option("touch", Bytes::gib(4).0)
    };
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    vm.monitor_line("balloon 256").unwrap();
    let inflated = |event: &Event| matches!(event, Event::Inflated { .. }).then_some(());
    vm.wait("balloon", inflated).unwrap();
    for nth in 0..DIMMS {
        let address = Some(Bytes::gib(8 * u64::from(nth + 1)).0);
        let dimm = Dimm { address, ..Dimm::new(format!("dimm{nth}"), LMB) };
        let end = vm.plug(&dimm).unwrap();
        assert_eq!(end.reason, None, "DIMM {nth}");
    }
    vm.finish().unwrap();
}

/// A change of a random test.
enum RandomChange {
    Add(Dimm),
    /// The guest refuses to release the DIMM, because a frame is pinned.
    Refuse(Dimm),
    Remove(Dimm),
}

/// Returns random changes that add and remove `dimms` DIMMs of random sizes. The guest pins a frame
/// of each third DIMM and refuses the first request for its removal. If there is one node, QEMU
/// chooses the addresses. If there are two nodes, each node has 32 GiB of addresses for DIMMs.
fn random_changes(dimms: usize, nodes: u32, random: &mut Rng) -> Vec<RandomChange> {
    let mut changes = Vec::new();
    // The plugged DIMMs, and whether the guest pins a frame of each.
    let mut plugged: Vec<(Dimm, bool)> = Vec::new();
    let mut additions = 0;
    while additions < dimms || !plugged.is_empty() {
        let size = Bytes(LMB.0 << random.u32(..5));
        let node = random.u32(..nodes);
        let used: u64 = plugged.iter().map(|(dimm, _)| dimm.size.0).sum();
        let fits = plugged.len() < SLOTS as usize && used <= Bytes::gib(28).0;
        let address = (nodes > 1).then(|| lowest_free_address(&plugged, node, size));
        let may_add = additions < dimms && fits && address != Some(None);
        if may_add && (plugged.is_empty() || random.u8(..5) < 3) {
            additions += 1;
            let id = format!("dimm{additions}");
            let dimm = Dimm { id, size, node, address: address.flatten() };
            changes.push(RandomChange::Add(dimm.clone()));
            plugged.push((dimm, additions % 3 == 0));
        } else if !plugged.is_empty() {
            let (dimm, is_pinned) = plugged.swap_remove(random.usize(..plugged.len()));
            if is_pinned {
                changes.push(RandomChange::Refuse(dimm.clone()));
            }
            changes.push(RandomChange::Remove(dimm));
        }
    }
    changes
}

/// Returns the lowest free address for a DIMM in the 32 GiB of its node.
fn lowest_free_address(plugged: &[(Dimm, bool)], node: u32, size: Bytes) -> Option<u64> {
    let node_start = Bytes::gib(1).0 + u64::from(node) * Bytes::gib(32).0;
    let addresses = (node_start..node_start + Bytes::gib(32).0 - size.0)
        .step_by(usize::try_from(LMB.0).unwrap());
    let is_free = |&address: &u64| {
        plugged.iter().all(|(dimm, _)| {
            let start = dimm.address.unwrap();
            start + dimm.size.0 <= address || address + size.0 <= start
        })
    };
    addresses.into_iter().find(is_free)
}

/// Adds and removes 100 random DIMMs if the environment variable `HOTMEM_DEEP` is set, and
/// otherwise 3.
fn add_and_remove_randomly(nodes: u32) {
    let dimms = if env::var_os("HOTMEM_DEEP").is_some() { 100 } else { 3 };
    let seed = env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let changes = random_changes(dimms, nodes, &mut Rng::with_seed(seed.unwrap_or(1)));
    let requests = u32::try_from(changes.len()).unwrap();
    let config = Config { nodes, ..config(Bytes::gib(65), requests).with_guest_option("pin", 3) };
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    for change in &changes {
        match change {
            RandomChange::Add(dimm) => drop(add(&mut vm, dimm, &config)),
            RandomChange::Refuse(dimm) => remove_refused(&mut vm, dimm, &config, PINNED_REASON),
            RandomChange::Remove(dimm) => remove(&mut vm, dimm, &config),
        }
    }
    // At its end the guest checks its patterns and the engine's metadata.
    vm.finish().unwrap();
}

#[test]
fn random_dimms_of_one_node_are_added_and_removed() {
    add_and_remove_randomly(1);
}

#[test]
fn random_dimms_of_two_nodes_are_added_and_removed() {
    add_and_remove_randomly(2);
}

#[test]
fn a_dimm_between_dimms_of_another_node_is_added_to_its_own_node() {
    let config = config(Bytes::gib(9), 4);
    let config = Config { nodes: 2, ..config };
    let mut vm = Vm::start(&config).unwrap();
    wait_until_ready(&mut vm);
    let dimm_at = |id: &str, gib: u64, node| Dimm {
        node,
        address: Some(Bytes::gib(gib).0),
        ..Dimm::new(id, Bytes::gib(1))
    };
    add(&mut vm, &dimm_at("below", 1, 0), &config);
    add(&mut vm, &dimm_at("above", 3, 0), &config);
    let between = dimm_at("between", 2, 1);
    let end = vm.plug(&between).unwrap();
    assert_eq!((end.lmbs, end.misplaced, &end.reason), (4, 0, &None));
    assert_eq!(end.nodes[..2], [Bytes::mib(2560).0, Bytes::mib(1536).0]);
    remove(&mut vm, &between, &config);
    vm.finish().unwrap();
}
