//! Counts the instructions of a pair, an allocation and the free of what it allocated, near each of
//! four nodes in turn. The CPU is on the first node, and all memory is kernel memory. What a build of
//! the engine makes of a pair depends on the compiler's options, so the peers are other pairs: one within
//! bounds, which divides a pageblock each time, and one of a request that no movable memory would suit.

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
fn counted_pairs(frames: &Frames<OneCpu>, request: impl Fn(u32) -> AllocRequest) {
    for _ in 0..TURNS {
        for node in 0..NODES {
            let allocated = frames.alloc_range(request(node)).unwrap();
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

/// If this is the process under valgrind, makes the pairs that it was told to make, and returns true.
fn is_counted() -> bool {
    let Some(kind) = std::env::var_os(VARIABLE) else { return false };
    let memory = Memory::new(2 * u64::from(NODES) * SECTION);
    let frames = Frames::new(OneCpu);
    let _hotplug = boot(&frames, &memory);
    let frame = AllocRequest::frames(1);
    let near = |n: u32| NodeChoice::Near(NodeId(n));
    if kind == "bounds" {
        let node = |n: u32| range(u64::from(n) * 2 * SECTION, 2 * SECTION);
        counted_pairs(&frames, |n| frame.within(node(n).start()..node(n).end()));
    } else if kind == "movable" {
        counted_pairs(&frames, |n| frame.movable().node(near(n)));
    } else {
        counted_pairs(&frames, |n| frame.node(near(n)));
    }
    frames.validated().unwrap();
    true
}

#[test]
fn a_pair_near_each_node_in_turn_divides_no_pageblock() {
    if is_counted() || !can_count() {
        return;
    }
    let test = "nodes_in_turn::a_pair_near_each_node_in_turn_divides_no_pageblock";
    let pair = |kind| instructions(test, "counted_pairs", (VARIABLE, kind));
    let (near, within_bounds) = (pair("nodes"), pair("bounds"));
    assert!(
        2.0 * near < within_bounds,
        "{near} instructions near nodes, {within_bounds} in bounds"
    );
}

#[test]
fn a_movable_pair_near_each_node_in_turn_uses_the_cursors_of_the_kernel_zone() {
    if is_counted() || !can_count() {
        return;
    }
    let test =
        "nodes_in_turn::a_movable_pair_near_each_node_in_turn_uses_the_cursors_of_the_kernel_zone";
    let pair = |kind| instructions(test, "counted_pairs", (VARIABLE, kind));
    let (movable, kernel) = (pair("movable"), pair("nodes"));
    assert!(movable < 2.0 * kernel, "{movable} instructions of movable pairs, {kernel} of others");
}
