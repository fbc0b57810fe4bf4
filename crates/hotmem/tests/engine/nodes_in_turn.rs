//! Counts the instructions of a pair, an allocation and the free of what it allocated, near each of
//! four nodes in turn. The CPU is on the first node.

use crate::instruction_count::{can_count, instructions};
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, SECTION, range};

/// The environment variable that tells the process under valgrind to make the pairs.
const VARIABLE: &str = "HOTMEM_TEST_NODES_IN_TURN";
const TURNS: u32 = 100;
const NODES: u32 = 4;

#[inline(never)]
fn counted_pairs(frames: &Frames<OneCpu>) {
    for _ in 0..TURNS {
        for node in 0..NODES {
            let near = AllocRequest::frames(1).node(NodeChoice::Near(NodeId(node)));
            let allocated = frames.alloc_range(near).unwrap();
            assert_eq!(allocated.start().number() / (2 * SECTION), u64::from(node));
            frames.free_range(allocated).unwrap();
        }
    }
}

/// Boots an instance with two sections on each node.
fn boot<'f>(frames: &'f Frames<OneCpu>, memory: &Memory) -> Hotplug<'f, OneCpu> {
    let len = range(0, 2 * SECTION).bytes();
    let ram = [BootRange { start: 0, len: Bytes(u64::from(NODES) * len.0) }];
    let part = |n: u32| (BootRange { start: u64::from(n) * len.0, len }, NodeId(n));
    let nodes = [0, 1, 2, 3].map(part);
    let map = BootMap { nodes: &nodes, ..BootMap::from(&ram) };
    hotmem_testkit::start(frames, memory.direct_map(), map).unwrap()
}

#[test]
fn a_pair_near_each_node_in_turn_divides_no_pageblock() {
    if std::env::var_os(VARIABLE).is_some() {
        let memory = Memory::new(2 * u64::from(NODES) * SECTION);
        let frames = Frames::new(OneCpu);
        let _hotplug = boot(&frames, &memory);
        counted_pairs(&frames);
        frames.validated().unwrap();
        return;
    }
    if !can_count() {
        return;
    }
    let test = "nodes_in_turn::a_pair_near_each_node_in_turn_divides_no_pageblock";
    let counted = instructions(test, "counted_pairs", (VARIABLE, "1"));
    let pair = counted / f64::from(TURNS * NODES);
    // To divide a pageblock and to publish it again takes some 3000 instructions.
    assert!(pair < 1200.0, "{pair} instructions for a pair");
}
