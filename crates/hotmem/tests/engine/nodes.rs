//! Tests NUMA nodes: allocation prefers a node and falls back in a given order; nodes are added and
//! removed.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A platform whose CPU has the number, and is on the node, that the test chooses.
#[derive(Default)]
struct NodePlatform(AtomicUsize);

impl Platform for &NodePlatform {
    fn cpu(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
    fn node(&self) -> NodeId {
        NodeId(u32::try_from(self.0.load(Ordering::Relaxed)).unwrap())
    }
}

fn node(n: u32) -> NodeId {
    NodeId(n)
}

/// Boots an instance with four sections of boot memory, of which section n is on node n.
fn four_nodes<'a>(
    frames: &'a Frames<&'a NodePlatform>,
    memory: &Memory,
) -> Hotplug<'a, &'a NodePlatform> {
    let section = range(0, SECTION).bytes();
    let ram = [BootRange { start: 0, len: Bytes(4 * section.0) }];
    let part = |n: u32| (BootRange { start: u64::from(n) * section.0, len: section }, node(n));
    let nodes = [0, 1, 2, 3].map(part);
    let map = BootMap { nodes: &nodes, ..BootMap::from(&ram) };
    hotmem_testkit::start(frames, memory.direct_map(), map).unwrap()
}

/// Returns the number of the section that a range begins in.
fn section_of(range: PfnRange) -> usize {
    usize::try_from(range.start().number() / SECTION).unwrap()
}

#[test]
fn each_cpu_gets_its_own_nodes_memory_then_that_of_the_others() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(4 * SECTION));
    let frames = Frames::new(&platform);
    let _hotplug = four_nodes(&frames, &memory);
    for request in
        [AllocRequest::frames(1), AllocRequest::frames(2), AllocRequest::frames(PAGEBLOCK)]
    {
        let mut held = Vec::new();
        platform.0.store(2, Ordering::Relaxed);
        let mut order = Vec::new();
        while let Ok(allocated) = frames.alloc_range(request) {
            if order.last() != Some(&section_of(allocated)) {
                order.push(section_of(allocated));
            }
            held.push(allocated);
        }
        assert_eq!(order, [2, 0, 1, 3], "{request:?}");
        held.into_iter().for_each(|allocated| frames.free_range(allocated).unwrap());
        frames.validated().unwrap();
    }
}

#[test]
fn a_request_can_prefer_or_require_a_node() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(4 * SECTION));
    let frames = Frames::new(&platform);
    let _hotplug = four_nodes(&frames, &memory);
    for request in [AllocRequest::frames(1), AllocRequest::frames(PAGEBLOCK)] {
        assert_eq!(section_of(frames.alloc_range(request).unwrap()), 0);
        assert_eq!(
            section_of(frames.alloc_range(request.node(NodeChoice::Near(node(3)))).unwrap()),
            3
        );
        assert_eq!(section_of(frames.alloc_range(request).unwrap()), 0);
    }
    let mut held = Vec::new();
    while let Ok(allocated) =
        frames.alloc_range(AllocRequest::frames(1).node(NodeChoice::Only(node(1))))
    {
        assert_eq!(section_of(allocated), 1);
        held.push(allocated);
    }
    assert!(held.len() as u64 > SECTION - PAGEBLOCK);
    assert_ne!(
        section_of(
            frames.alloc_range(AllocRequest::frames(1).node(NodeChoice::Near(node(1)))).unwrap()
        ),
        1
    );
    let missing = AllocRequest::frames(1).node(NodeChoice::Only(node(7)));
    assert_eq!(frames.alloc_range(missing), Err(AllocError::OutOfMemory));
}

#[test]
fn a_cpu_on_a_node_without_memory_uses_the_first_node_until_memory_is_added() {
    for len in [1, 3, PAGEBLOCK] {
        let (platform, memory) = (NodePlatform::default(), Memory::new(8 * SECTION));
        let frames = Frames::new(&platform);
        let mut hotplug = four_nodes(&frames, &memory);
        platform.0.store(6, Ordering::Relaxed);
        let request = AllocRequest::frames(len);
        let section_for = |request: AllocRequest| {
            let allocated = frames.alloc_range(request).unwrap();
            frames.free_range(allocated).unwrap();
            section_of(allocated)
        };
        assert_eq!((section_for(request), section_for(request.movable())), (0, 0), "{request:?}");
        let on_node_6 = range(6 * SECTION, SECTION);
        hotplug.announce(Announce { node: node(6), ..on_node_6.into() }).unwrap();
        hotplug.add(on_node_6).unwrap();
        assert_eq!(section_for(request.movable()), 0, "the memory of node 6 is still offline");
        hotplug.online(on_node_6, OnlineType::Movable, &mut NoHooks).unwrap();
        let allocated = frames.alloc_range(request.movable()).unwrap();
        assert_eq!((section_of(allocated), section_for(request)), (6, 0), "{request:?}");
        frames.free_range(allocated).unwrap();
        let mut offline = hotplug.offline(on_node_6).unwrap();
        let done = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(on_node_6));
        assert_eq!(section_for(request.movable()), 0, "the memory of node 6 is offline again");
        frames.validated().unwrap();
    }
}

/// Hooks that record the nodes that appear and vanish.
#[derive(Default)]
struct RecordingHooks(Vec<(&'static str, u32)>);

impl Hooks for RecordingHooks {
    fn node_appeared(&mut self, node: NodeId) {
        self.0.push(("appeared", node.0));
    }
    fn node_vanished(&mut self, node: NodeId) {
        self.0.push(("vanished", node.0));
    }
}

#[test]
fn a_node_appears_with_its_first_memory_and_vanishes_with_its_last() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(8 * SECTION));
    let frames = Frames::new(&platform);
    let mut hotplug = four_nodes(&frames, &memory);
    let mut hooks = RecordingHooks::default();
    let far = range(4 * SECTION, 2 * SECTION);
    hotplug.announce(Announce { node: node(9), ..far.into() }).unwrap();
    hotplug.add(far).unwrap();
    assert_eq!(hotplug.nodes().count(), 4);
    let (low, high) = far.split_at(range(5 * SECTION, 1).start());
    hotplug.online(high, OnlineType::Movable, &mut hooks).unwrap();
    hotplug.online(low, OnlineType::Movable, &mut hooks).unwrap();
    assert!(hotplug.nodes().any(|n| n == node(9)));
    for part in [low, high] {
        let mut offline = hotplug.offline(part).unwrap();
        let done = offline.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(part));
    }
    assert_eq!(hooks.0, [("appeared", 9), ("vanished", 9)]);
    assert_eq!(hotplug.nodes().count(), 4);
}

#[test]
fn a_boundary_of_nodes_is_rounded_up_to_a_section() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(2 * SECTION));
    let frames = Frames::new(&platform);
    let all = range(0, 2 * SECTION).bytes();
    // By the boot map, node 1 has a quarter of the first section and one frame more. The boundary
    // is rounded up to a section, so node 1 gets the whole section.
    let first = range(0, SECTION / 4 + 1).bytes();
    let ram = [BootRange { start: 0, len: all }];
    let nodes = [
        (BootRange { start: 0, len: first }, node(1)),
        (BootRange { start: first.0, len: all - first }, node(2)),
    ];
    let map = BootMap { nodes: &nodes, ..BootMap::from(&ram) };
    let hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    for (n, start, end) in [(1, 0, SECTION), (2, SECTION, 2 * SECTION)] {
        let zone = hotplug.zone(node(n), Zone::Kernel);
        assert_eq!(zone.spanned, range(start, end - start), "node {n}");
        assert_eq!(zone.online, end - start, "node {n}");
    }
    let counts = frames.validated().unwrap();
    assert_eq!(counts.online, 2 * SECTION);
    let mut allocated_frames = std::collections::BTreeSet::new();
    while let Ok(allocated) = frames.alloc_range(AllocRequest::frames(1)) {
        assert!(allocated_frames.insert(allocated.start()), "{allocated} was allocated twice");
    }
    assert_eq!(frames.counts().free, 0);
}

#[test]
fn a_request_that_avoids_a_node_uses_it_only_when_all_others_are_full() {
    for request in
        [AllocRequest::frames(1), AllocRequest::frames(3), AllocRequest::frames(PAGEBLOCK)]
    {
        let (platform, memory) = (NodePlatform::default(), Memory::new(4 * SECTION));
        let frames = Frames::new(&platform);
        let _hotplug = four_nodes(&frames, &memory);
        platform.0.store(2, Ordering::Relaxed);
        // The CPU runs on node 2, which the requests below avoid. This makes its hint lie there.
        assert_eq!(section_of(frames.alloc_range(request).unwrap()), 2);
        let mut sections = Vec::new();
        while let Ok(allocated) = frames.alloc_range(request.node(NodeChoice::Avoiding(node(2)))) {
            if sections.last() != Some(&section_of(allocated)) {
                sections.push(section_of(allocated));
            }
        }
        assert_eq!(sections, [0, 1, 3, 2], "{request:?}");
        frames.validated().unwrap();
    }
}

/// A kernel that migrates frames to other nodes, except those of `unmovable_range`: at the first
/// attempt it asks for a retry, and at each later one it says that they are unmovable.
struct MigratingHooks<'a> {
    frames: &'a Frames<&'a NodePlatform>,
    unmovable_range: Option<PfnRange>,
    asked_before: bool,
    migrated_ranges: Vec<PfnRange>,
}

impl Hooks for MigratingHooks<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        if self.unmovable_range.is_some_and(|pinned| pinned.overlaps(used)) {
            if std::mem::replace(&mut self.asked_before, true) {
                return Migration::Unmovable("pinned since");
            }
            return Migration::Retry;
        }
        let request =
            AllocRequest::frames(used.frames()).movable().node(NodeChoice::Avoiding(node(2)));
        let Ok(new) = self.frames.alloc_range(request) else { return Migration::Retry };
        self.migrated_ranges.push(new);
        self.frames.free_range(used).unwrap();
        Migration::Moved
    }
}

#[test]
fn a_blocker_names_an_unmovable_frame_and_the_request_succeeds_once_it_is_movable() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(8 * SECTION));
    let frames = Frames::new(&platform);
    let mut hotplug = four_nodes(&frames, &memory);
    platform.0.store(2, Ordering::Relaxed);
    let far = range(4 * SECTION, 2 * SECTION);
    hotplug.announce(Announce { node: node(2), ..far.into() }).unwrap();
    hotplug.add(far).unwrap();
    hotplug.online(far, OnlineType::Movable, &mut NoHooks).unwrap();
    let frame_at = |frame| AllocRequest::frames(1).at(range(frame, 1).start()).movable();
    let early = frames.alloc_range(frame_at(4 * SECTION + 5)).unwrap();
    let late = frames.alloc_range(frame_at(5 * SECTION + 7)).unwrap();
    assert!(far.covers(early) && far.covers(late));
    let mut hooks = MigratingHooks {
        frames: &frames,
        unmovable_range: Some(late),
        asked_before: false,
        migrated_ranges: vec![],
    };
    let mut offline = hotplug.offline(far).unwrap();
    let blocker = Blocker { range: late, kind: BlockerKind::Unmovable("pinned since") };
    let pending = offline.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED);
    assert_eq!(pending, Progress::Pending(blocker));
    // The other frame was migrated to another node, and no memory of the range can be allocated.
    assert_eq!(
        hooks.migrated_ranges.iter().map(|&moved| section_of(moved)).collect::<Vec<_>>(),
        [0]
    );
    assert!(!far.overlaps(frames.alloc_range(AllocRequest::frames(1).movable()).unwrap()));
    hooks.unmovable_range = None;
    let done = offline.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(far));
    assert_eq!(hooks.migrated_ranges.len(), 2);
    frames.validated().unwrap();
}

/// Adds the sections of one region on three nodes in turn, removes them, and adds them again on
/// other nodes.
#[test]
fn an_addition_may_name_the_node_of_its_memory() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(16 * SECTION));
    let frames = Frames::new(&platform);
    let mut hotplug = four_nodes(&frames, &memory);
    let all = range(4 * SECTION, 12 * SECTION);
    let region = hotplug.announce(Announce { node: node(9), ..all.into() }).unwrap();
    assert_eq!(frames.node_of(all.start()), None);
    for shift in 0..3 {
        let requested_node = |nth: usize| node([5, 6, 7][(nth + shift) % 3]);
        for (nth, section) in all.chunks(SECTION).enumerate() {
            // A section added without a node comes to the region's node, 9. Where node 7 is due, no
            // node is named.
            let request = AddRequest { node: Some(requested_node(nth)), ..section.into() };
            let request = if requested_node(nth) == node(7) { section.into() } else { request };
            hotplug.add(request).unwrap();
        }
        let mut hooks = RecordingHooks::default();
        // One request puts all of them online.
        hotplug.online(all, OnlineType::Movable, &mut hooks).unwrap();
        assert_eq!(hooks.0, [("appeared", 5), ("appeared", 6), ("appeared", 9)]);
        let resulting_node =
            |nth| if requested_node(nth) == node(7) { node(9) } else { requested_node(nth) };
        for (nth, section) in all.chunks(SECTION).enumerate() {
            assert_eq!(frames.node_of(section.start()), Some(resulting_node(nth)));
        }
        for n in [5, 6, 9] {
            let zone = hotplug.zone(node(n), Zone::Movable);
            assert_eq!((zone.online, zone.contiguous), (4 * SECTION, false));
            let request = AllocRequest::frames(SECTION).movable().node(NodeChoice::Only(node(n)));
            let allocated = frames.alloc_range(request).expect("each node has four free sections");
            assert_eq!(frames.node_of(allocated.start()), Some(node(n)));
            frames.free_range(allocated).unwrap();
        }
        let blocks: Vec<_> = hotplug.memory_blocks(SECTION).map(|block| block.node).collect();
        assert_eq!(blocks[4..], std::array::from_fn::<_, 12, _>(resulting_node));
        frames.validated().unwrap();
        let mut offline = hotplug.offline(all).unwrap();
        let done = offline.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(all));
        assert_eq!(hooks.0[3..], [("vanished", 5), ("vanished", 6), ("vanished", 9)]);
        hotplug.remove(all).unwrap();
    }
    hotplug.withdraw(region).unwrap();
}
