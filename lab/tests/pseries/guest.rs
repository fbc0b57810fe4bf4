//! Tests of the guest on QEMU's pseries machine: they add and remove DIMMs whose memory is in use,
//! and check that the guest, the device tree's connectors and QEMU agree.

mod faults;

use fastrand::Rng;
use hotmem::Bytes;
use hotmem_lab::{
    pseries::{Config, Dimm, Done, Event, HostEvent, SLOTS, Vm},
    qemu::image,
    resident::resident,
};
use std::env;

const LMB: Bytes = Bytes::mib(256);
/// The reason that the guest gives for memory with a pinned frame.
const PINNED: &str = "pinned by the kernel";

/// Returns a machine whose guest uses 8 MiB of each DIMM and ends after this many requests.
fn config(max_memory: Bytes, requests: u32) -> Config {
    let kernel = image::find_pseries(None).unwrap();
    Config::new(kernel, max_memory).with("touch", Bytes::mib(8).0).with("exit", requests)
}

/// Waits for the guest to start. Returns how many removable LMBs are assigned then.
fn ready(vm: &mut Vm) -> u64 {
    let ready = vm.wait("kernel", |event| match *event {
        Event::Ready { assigned, lmb_size, .. } => Some((assigned, lmb_size)),
        _ => None,
    });
    let (assigned, lmb_size) = ready.unwrap().0;
    assert_eq!(lmb_size, LMB.0);
    assigned
}

/// Checks that the guest's memory on each node is what QEMU reports.
fn agree(vm: &mut Vm, done: &Done, config: &Config) {
    let dimms = vm.dimms().unwrap();
    let nodes = config.nodes.max(1);
    let at_boot = config.boot_memory.0 / u64::from(nodes);
    let plugged = |node: u32| -> u64 {
        dimms.iter().filter(|dimm| dimm.node == node).map(|dimm| dimm.size.0).sum()
    };
    let all: u64 = dimms.iter().map(|dimm| dimm.size.0).sum();
    assert_eq!(done.assigned * LMB.0, all, "{done:?}");
    assert_eq!(done.online, config.boot_memory.0 + all, "{done:?}");
    for node in 0..nodes {
        assert_eq!(done.nodes[node as usize], at_boot + plugged(node), "node {node}: {done:?}");
    }
}

fn added(vm: &mut Vm, dimm: &Dimm, config: &Config) -> Done {
    let done = vm.plug(dimm).unwrap();
    assert_eq!((done.change.as_str(), &done.why), ("add", &None));
    assert_eq!(u64::from(done.lmbs), dimm.size.0 / LMB.0);
    assert_eq!(done.misplaced, 0);
    agree(vm, &done, config);
    done
}

fn removed(vm: &mut Vm, dimm: &Dimm, config: &Config) {
    let removal = vm.unplug(&dimm.id).unwrap();
    assert_eq!(removal.host, HostEvent::Deleted(dimm.id.clone()), "{:?}", removal.done);
    assert_eq!(u64::from(removal.done.lmbs), dimm.size.0 / LMB.0);
    agree(vm, &removal.done, config);
}

/// Requests a DIMM that the guest refuses to release, and checks the guest's reason and QEMU's
/// state.
fn refused(vm: &mut Vm, dimm: &Dimm, config: &Config, because: &str) {
    let removal = vm.unplug(&dimm.id).unwrap();
    assert_eq!(removal.host, HostEvent::Refused(dimm.id.clone()), "{:?}", removal.done);
    let why = removal.done.why.as_deref().unwrap_or_default();
    assert!(why.contains(because), "{why}");
    assert_eq!((removal.done.unrestored, removal.done.lost), (0, 0));
    agree(vm, &removal.done, config);
}

#[test]
fn dimms_are_added_used_refused_and_removed() {
    let config = config(Bytes::gib(17), 7).with("pin", 2);
    let config = Config { nodes: 2, ..config };
    let mut vm = Vm::start(&config).unwrap();
    assert_eq!(ready(&mut vm), 0);
    let first = Dimm { node: 1, ..Dimm::new("first", Bytes::gib(1)) };
    let second = Dimm::new("second", Bytes::mib(512));
    let done = added(&mut vm, &first, &config);
    assert_eq!((done.by.as_str(), done.first, done.count), ("count-indexed", 0x8000_0004, 4));
    added(&mut vm, &second, &config);
    removed(&mut vm, &first, &config);
    // The guest pins a frame of each second DIMM until it has refused one request.
    refused(&mut vm, &second, &config, PINNED);
    removed(&mut vm, &second, &config);
    // The slot and the addresses can be used again.
    added(&mut vm, &first, &config);
    removed(&mut vm, &first, &config);
    vm.finish().unwrap();
}

/// The kernel refuses a DIMM. QEMU does not take the DIMM's connectors back by itself, but the DIMM
/// can be removed, and added again.
#[test]
fn a_dimm_that_the_kernel_refuses_can_be_removed_and_added_again() {
    let config = config(Bytes::gib(9), 4).with("at_once", 1).with("veto", 1);
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    let dimm = Dimm::new("dimm", Bytes::mib(512));
    let done = vm.plug(&dimm).unwrap();
    let why = done.why.as_deref().unwrap_or_default();
    assert!(why.contains("asks for a veto"), "{done:?}");
    assert_eq!((done.assigned, done.online, done.unrestored), (0, config.boot_memory.0, 2));
    removed(&mut vm, &dimm, &config);
    added(&mut vm, &dimm, &config);
    removed(&mut vm, &dimm, &config);
    vm.finish().unwrap();
}

#[test]
fn requests_by_count_skip_lmbs_without_memory() {
    let config = config(Bytes::gib(9), 2).with("events", "off");
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    let far = Dimm { address: Some(Bytes::gib(4).0), ..Dimm::new("far", Bytes::mib(512)) };
    let done = added(&mut vm, &far, &config);
    // The LMBs from 1 to 4 GiB are skipped.
    assert_eq!((done.by.as_str(), done.count, done.skipped), ("count", 2, 12));
    let done = added(&mut vm, &Dimm::new("near", LMB), &config);
    assert_eq!((done.by.as_str(), done.count, done.skipped), ("count", 1, 0));
    vm.finish().unwrap();
}

#[test]
fn a_single_lmb_is_added_by_index_in_a_tree_of_version_1() {
    let config = config(Bytes::gib(9), 2).with("by_index", "on").with("version", 1);
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    let dimm = Dimm::new("dimm", LMB);
    let done = added(&mut vm, &dimm, &config);
    assert_eq!((done.by.as_str(), done.first), ("index", 0x8000_0004));
    removed(&mut vm, &dimm, &config);
    vm.finish().unwrap();
}

/// DIMMs that are plugged before the negotiation are assigned at boot, without an event, and can be
/// removed.
#[test]
fn dimms_from_before_the_negotiation_can_be_removed() {
    let config = config(Bytes::gib(9), 3);
    let cold = Dimm::new("cold", Bytes::mib(512));
    let config = Config { stopped: true, dimms: vec![cold.clone()], ..config };
    let mut vm = Vm::start(&config).unwrap();
    let early = Dimm::new("early", LMB);
    vm.add(&early).unwrap();
    vm.go_on().unwrap();
    assert_eq!(ready(&mut vm), 3);
    added(&mut vm, &Dimm::new("late", LMB), &config);
    removed(&mut vm, &early, &config);
    removed(&mut vm, &cold, &config);
    vm.finish().unwrap();
}

/// Events that arrive during a request are handled after it.
#[test]
fn events_during_a_request_are_handled_after_it() {
    const DIMMS: u32 = 6;
    let config = config(Bytes::gib(17), 2 * DIMMS).with("at_once", 1);
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    let dimms: Vec<_> =
        (0..DIMMS).map(|nth| Dimm::new(format!("dimm{nth}"), Bytes::gib(1))).collect();
    dimms.iter().for_each(|dimm| vm.add(dimm).unwrap());
    let mut last = None;
    for _ in &dimms {
        let done = vm.done("end of an addition").unwrap();
        assert_eq!((done.lmbs, &done.why), (4, &None));
        last = Some(done);
    }
    agree(&mut vm, &last.unwrap(), &config);
    dimms.iter().for_each(|dimm| vm.ask_back(&dimm.id).unwrap());
    for _ in &dimms {
        let done = vm.done("end of a removal").unwrap();
        assert_eq!((done.lmbs, &done.why), (4, &None));
    }
    vm.finish().unwrap();
}

/// The guest reports its free memory to a balloon on PCI, and the host gets back what the guest
/// frees.
#[test]
fn free_memory_is_reported() {
    const TOUCHED: Bytes = Bytes::mib(128);
    let config = config(Bytes::gib(5), 4).with("touch", TOUCHED.0);
    let balloon = ["-device", "virtio-balloon-pci,id=balloon0,free-page-reporting=on"];
    let config = Config { more: balloon.map(str::to_owned).into(), ..config };
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    // A slow guest reports in several parts. In the end it has reported 1 GiB less what the kernel
    // uses.
    let reported = |vm: &mut Vm| {
        let mut left = (Bytes::gib(1).0 - Bytes::mib(32).0).cast_signed();
        while left > 0 {
            let report = vm.wait("end of the reports", |event| match *event {
                Event::Reported { bytes, .. } => Some(bytes),
                _ => None,
            });
            left -= report.unwrap().0.cast_signed();
        }
        resident(vm.pid()).expect("QEMU runs")
    };
    reported(&mut vm);
    let [first, second] = ["first", "second"].map(|id| Dimm::new(id, Bytes::gib(1)));
    vm.plug(&first).unwrap();
    // All of the DIMM is reported, except the part that was touched.
    let touched = vm.wait("patterns", |event| matches!(event, Event::Touched { .. }).then_some(()));
    touched.unwrap();
    let with_first = resident(vm.pid()).expect("QEMU runs");
    // The guest frees what it touched of the first DIMM and touches as much of the second.
    vm.plug(&second).unwrap();
    let with_second = reported(&mut vm);
    let grown = with_second.0.saturating_sub(with_first.0);
    assert!(grown < TOUCHED.0 / 2, "{with_first} and then {with_second}");
    for dimm in [&first, &second] {
        removed(&mut vm, dimm, &config);
    }
    vm.finish().unwrap();
}

/// A step of a random test.
enum Step {
    Add(Dimm),
    /// The guest refuses to release it, because a frame is pinned.
    Refuse(Dimm),
    Remove(Dimm),
}

/// Returns random steps that add and remove this many DIMMs of random sizes. The guest pins a frame
/// of each third DIMM and refuses the first request for that DIMM. With one node QEMU chooses the
/// addresses; with two each node has 32 GiB for DIMMs.
fn random_steps(dimms: usize, nodes: u32, random: &mut Rng) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut here: Vec<(Dimm, bool)> = Vec::new();
    let mut additions = 0;
    while additions < dimms || !here.is_empty() {
        let size = Bytes(LMB.0 << random.u32(..5));
        let node = random.u32(..nodes);
        let used: u64 = here.iter().map(|(dimm, _)| dimm.size.0).sum();
        let fits = here.len() < SLOTS as usize && used <= Bytes::gib(28).0;
        let address = (nodes > 1).then(|| place(&here, node, size));
        let may_add = additions < dimms && fits && address != Some(None);
        if may_add && (here.is_empty() || random.u8(..5) < 3) {
            additions += 1;
            let id = format!("dimm{additions}");
            let dimm = Dimm { id, size, node, address: address.flatten() };
            steps.push(Step::Add(dimm.clone()));
            here.push((dimm, additions % 3 == 0));
        } else if !here.is_empty() {
            let (dimm, pinned) = here.swap_remove(random.usize(..here.len()));
            if pinned {
                steps.push(Step::Refuse(dimm.clone()));
            }
            steps.push(Step::Remove(dimm));
        }
    }
    steps
}

/// Returns the lowest place for a DIMM in its node's 32 GiB.
fn place(here: &[(Dimm, bool)], node: u32, size: Bytes) -> Option<u64> {
    let start = Bytes::gib(1).0 + u64::from(node) * Bytes::gib(32).0;
    let ends = (start..start + Bytes::gib(32).0 - size.0).step_by(usize::try_from(LMB.0).unwrap());
    let is_free = |&at: &u64| {
        here.iter().all(|(dimm, _)| {
            let its = dimm.address.unwrap();
            its + dimm.size.0 <= at || at + size.0 <= its
        })
    };
    ends.into_iter().find(is_free)
}

/// Adds and removes 100 DIMMs with `HOTMEM_DEEP`, otherwise 3.
fn add_and_remove_randomly(nodes: u32) {
    let dimms = if env::var_os("HOTMEM_DEEP").is_some() { 100 } else { 3 };
    let seed = env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let steps = random_steps(dimms, nodes, &mut Rng::with_seed(seed.unwrap_or(1)));
    let requests = u32::try_from(steps.len()).unwrap();
    let config = Config { nodes, ..config(Bytes::gib(65), requests).with("pin", 3) };
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    for step in &steps {
        match step {
            Step::Add(dimm) => drop(added(&mut vm, dimm, &config)),
            Step::Refuse(dimm) => refused(&mut vm, dimm, &config, PINNED),
            Step::Remove(dimm) => removed(&mut vm, dimm, &config),
        }
    }
    // The guest checks its patterns and the engine a last time.
    vm.finish().unwrap();
}

#[test]
fn random_dimms_of_one_node() {
    add_and_remove_randomly(1);
}

#[test]
fn random_dimms_of_two_nodes() {
    add_and_remove_randomly(2);
}

/// A DIMM is added to its own node, even between DIMMs of another node.
#[test]
fn a_dimm_between_those_of_another_node_is_on_its_own_node() {
    let config = config(Bytes::gib(9), 4);
    let config = Config { nodes: 2, ..config };
    let mut vm = Vm::start(&config).unwrap();
    ready(&mut vm);
    let at = |id: &str, gib: u64, node| Dimm {
        node,
        address: Some(Bytes::gib(gib).0),
        ..Dimm::new(id, Bytes::gib(1))
    };
    added(&mut vm, &at("below", 1, 0), &config);
    added(&mut vm, &at("above", 3, 0), &config);
    let between = at("between", 2, 1);
    let done = vm.plug(&between).unwrap();
    assert_eq!((done.lmbs, done.misplaced, &done.why), (4, 0, &None));
    assert_eq!(done.nodes[..2], [Bytes::mib(2560).0, Bytes::mib(1536).0]);
    removed(&mut vm, &between, &config);
    vm.finish().unwrap();
}
