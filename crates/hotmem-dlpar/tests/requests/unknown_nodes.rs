//! Tests that memory comes to the first node that has memory online if its own node is not known, or
//! if the engine has no room for it.

use crate::basic::ADD;
use crate::common::{Entry, TableStorage, arrays, size, v2};
use crate::partition::{FIRST_INDEX, movable_request};
use core::ops::ControlFlow;
use hotmem::{BootMap, BootRange, Budget, Bytes, Frames, MAX_NODES, NoHooks, NodeId, OneCpu, Pfn};
use hotmem_dlpar::hypervisor::{Connector, Hypervisor};
use hotmem_dlpar::*;

/// An LMB has two sections, so that each LMB can have a node of its own.
const LMB: u64 = 256 << 20;
/// The node of boot memory, which is the LMB at address 0.
const BOOT_NODE: NodeId = NodeId(5);

/// Adds all of these LMBs to a machine with boot memory on [`BOOT_NODE`]. `nodes` are the nodes of the
/// rows of the associativity lists. Returns the number of LMBs on another node than theirs, and the
/// node of each LMB.
fn add_all(lmbs: &[Entry], nodes: &[u32]) -> (u32, Vec<Option<NodeId>>) {
    let property = v2(lmbs, LMB);
    let memory = DynamicMemory::parse(Version::V2, &property, size(LMB)).unwrap();
    let lists = arrays(nodes);
    let lists = LookupArrays::parse(&lists).unwrap();
    let numa = Numa::parse(&[0, 0, 0, 4], Affinity::Form1).unwrap();
    let mut buffers = TableStorage::of(&memory, &lists);
    let table = Table::new(&memory, &lists, numa, buffers.storage()).unwrap();
    let mut connectors: Vec<_> = Connector::of(&table).collect();
    let mut tree = vec![0; 1 << 16];
    let mut hypervisor = Hypervisor::new(&mut connectors, 0, &mut tree);
    let ram = hotmem_testkit::Memory::new(Bytes(LMB).frames());
    let frames = Frames::new(OneCpu);
    let boot = [BootRange { start: 0, len: Bytes(LMB) }];
    let boot_nodes = [(boot[0], BOOT_NODE)];
    let map = BootMap { nodes: &boot_nodes, ..boot.as_slice().into() };
    let mut hotplug = hotmem_testkit::start(&frames, ram.direct_map(), map).unwrap();
    let mut dlpar = Dlpar::new(table, &hotplug);
    let mut machine =
        Machine { hotplug: &mut hotplug, hooks: &mut NoHooks, connectors: &mut hypervisor };
    let all = movable_request(ADD, LmbSelection::Count(lmbs.len() as u32));
    let done = dlpar.carry_out(all, &mut machine, Budget::UNLIMITED, |_| ControlFlow::Continue(()));
    let node_of = |lmb: &Entry| frames.node_of(Pfn::containing(lmb.address).unwrap());
    (done.unwrap().misplaced, lmbs.iter().map(node_of).collect())
}

fn lmb(nth: u32, aa_index: u32, flags: u32) -> Entry {
    let address = u64::from(nth + 1) * LMB;
    Entry { address, index: FIRST_INDEX + nth, reserved: 0, aa_index, flags }
}

#[test]
fn memory_without_a_node_comes_to_the_first_online_node() {
    // The second row names no domain.
    let lmbs = [lmb(0, u32::MAX, FLAG_AI_INVALID), lmb(1, 1, 0), lmb(2, 7, 0), lmb(3, 0, 0)];
    let (misplaced, nodes) = add_all(&lmbs, &[9, 0xffff]);
    let own = NodeId(9);
    assert_eq!(nodes, [BOOT_NODE, BOOT_NODE, BOOT_NODE, own].map(Some));
    assert_eq!(misplaced, 0);
}

#[test]
fn memory_of_one_node_too_many_comes_to_the_first_online_node() {
    let count = MAX_NODES as u32 + 2;
    let lmbs: Vec<_> = (0..count).map(|nth| lmb(nth, nth, 0)).collect();
    let numbers: Vec<_> = (0..count).map(|nth| 100 + nth).collect();
    let (misplaced, nodes) = add_all(&lmbs, &numbers);
    // The node of boot memory is one of the nodes.
    let fitting = MAX_NODES - 1;
    let own = numbers[..fitting].iter().map(|&number| Some(NodeId(number)));
    assert!(nodes.iter().copied().eq(own.chain([Some(BOOT_NODE); 3])), "{nodes:?}");
    assert_eq!(misplaced, 3);
}
