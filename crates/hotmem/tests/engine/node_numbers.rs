//! Tests node numbers of the platform: they may be any 32-bit numbers, but at most `MAX_NODES`
//! nodes exist at a time.
//!
//! In the real geometry only boot memory is backed by real memory: all metadata lies there,
//! and other memory is never accessed.

use hotmem::*;
use hotmem_testkit::{
    DISTANT_PFN, Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _, make_words, range,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

/// A platform whose CPU is on the node that the test chooses.
#[derive(Default)]
struct NodePlatform(AtomicU32);

impl Platform for &NodePlatform {
    fn cpu(&self) -> usize {
        0
    }
    fn node(&self) -> NodeId {
        NodeId(self.0.load(Ordering::Relaxed))
    }
}

/// Returns the `nth` of a series of distinct node numbers, many of which have equal low bits.
fn node_number(nth: u32) -> u32 {
    match nth {
        0 => 0,
        1 => u32::MAX,
        _ => nth.wrapping_mul(1 << 24) | (nth >> 8) | ((nth % 3) << 12),
    }
}

/// The number of frames of boot memory: whole sections, large enough for the words of all memory
/// that is added.
const BOOT_FRAMES: u64 = SECTION * (4096 / SECTION + 1);

/// The number of frames that are backed by real memory. In the small geometry, boot memory is too
/// small for the bitmaps of all sections, so these lie in the sections themselves.
const BACKED_FRAMES: u64 =
    if cfg!(hotmem_geometry = "small") { BOOT_FRAMES + 3000 * SECTION } else { BOOT_FRAMES };

/// Returns a section above boot memory.
fn section_above_boot(nth: u32) -> PfnRange {
    range(BOOT_FRAMES + u64::from(nth) * SECTION, SECTION)
}

/// Boots an instance whose boot memory is on node 0.
fn start<'a>(
    frames: &'a Frames<&'a NodePlatform>,
    memory: &Memory,
) -> Hotplug<'a, &'a NodePlatform> {
    let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
    hotmem_testkit::start(frames, memory.direct_map(), &ram).unwrap()
}

fn plug(hotplug: &mut Hotplug<'_, &NodePlatform>, nth: u32) -> Result<(), AddError> {
    let memory = section_above_boot(nth);
    let region = hotplug.announce(memory).unwrap();
    let added = hotplug.add(AddRequest { node: Some(NodeId(node_number(nth))), ..memory.into() });
    match added {
        Ok(()) => hotplug.online(memory, OnlineType::Movable, &mut NoHooks).unwrap(),
        Err(_) => hotplug.withdraw(region).unwrap(),
    }
    added
}

#[test]
fn node_numbers_are_all_different() {
    let mut numbers: Vec<_> = (0..400).map(node_number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 400);
}

#[test]
fn one_node_too_many_changes_nothing_and_the_error_names_it() {
    let max_nodes = u32::try_from(MAX_NODES).unwrap();
    assert!(max_nodes >= 256);
    let (platform, memory) = (NodePlatform::default(), Memory::new(BACKED_FRAMES));
    let frames = Frames::new(&platform);
    let mut hotplug = start(&frames, &memory);
    for nth in 1..max_nodes {
        plug(&mut hotplug, nth).unwrap();
    }
    let before = frames.counts().words;
    for nth in max_nodes..max_nodes + 44 {
        let node = NodeId(node_number(nth));
        let error = plug(&mut hotplug, nth).unwrap_err();
        assert_eq!(error, AddError::TooManyNodes(node));
        assert_eq!(
            hotplug.state_at(section_above_boot(nth).start(), section_above_boot(nth).end()).1,
            State::Unknown
        );
        assert!(error.to_string().contains(&node_number(nth).to_string()), "{error}");
        assert!(hotplug.nodes().all(|other| other != node));
    }
    assert_eq!(frames.counts().words, before);
    assert_eq!(hotplug.nodes().count(), MAX_NODES);
    for nth in 1..max_nodes {
        let node = NodeId(node_number(nth));
        assert_eq!(hotplug.zone(node, Zone::Movable).spanned, section_above_boot(nth));
        for request in [AllocRequest::frames(1), AllocRequest::frames(PAGEBLOCK)] {
            let allocated =
                frames.alloc_range(request.movable().node(NodeChoice::Only(node))).unwrap();
            assert!(section_above_boot(nth).covers(allocated), "{node:?} got {allocated}");
            assert_eq!(frames.node_of(allocated.start()), Some(node));
            frames.free_range(allocated).unwrap();
        }
    }
    frames.validated().unwrap();
}

/// Adds and removes nodes at random, always near the largest number of nodes.
#[test]
fn a_node_without_memory_leaves_its_index_to_other_nodes() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(BACKED_FRAMES));
    let frames = Frames::new(&platform);
    let mut hotplug = start(&frames, &memory);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut present_nodes = BTreeSet::new();
    let remove = |hotplug: &mut Hotplug<'_, &NodePlatform>, nth: u32| {
        let memory = section_above_boot(nth);
        let mut offline = hotplug.offline(memory).unwrap();
        let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(memory));
        hotplug.remove(memory).unwrap();
        let (region, _) = hotplug.regions().find(|(_, range)| *range == memory).unwrap();
        hotplug.withdraw(region).unwrap();
    };
    for round in 0..3 {
        while present_nodes.len() < MAX_NODES - 1 {
            let nth = rng.u32(1..3000);
            if present_nodes.insert(nth) {
                plug(&mut hotplug, nth).unwrap();
            }
        }
        for _ in 0..60 {
            let nth = rng.u32(1..3000);
            let node = NodeId(node_number(nth));
            if present_nodes.contains(&nth) {
                remove(&mut hotplug, nth);
                present_nodes.remove(&nth);
                let refused = frames
                    .alloc_range(AllocRequest::frames(1).movable().node(NodeChoice::Only(node)));
                assert_eq!(refused, Err(AllocError::OutOfMemory));
            } else if present_nodes.len() == MAX_NODES - 1 {
                assert_eq!(plug(&mut hotplug, nth), Err(AddError::TooManyNodes(node)));
                let first = *present_nodes.first().unwrap();
                remove(&mut hotplug, first);
                present_nodes.remove(&first);
            } else {
                plug(&mut hotplug, nth).unwrap();
                present_nodes.insert(nth);
                let allocated = frames
                    .alloc_range(AllocRequest::frames(1).movable().node(NodeChoice::Only(node)))
                    .unwrap();
                assert!(section_above_boot(nth).covers(allocated));
                frames.free_range(allocated).unwrap();
            }
        }
        assert_eq!(hotplug.nodes().count(), present_nodes.len() + 1, "round {round}");
        std::mem::take(&mut present_nodes).into_iter().for_each(|nth| remove(&mut hotplug, nth));
        frames.validated().unwrap();
    }
}

#[test]
fn an_addition_that_fails_takes_no_node_index() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(BACKED_FRAMES));
    let frames = Frames::new(&platform);
    let mut hotplug = start(&frames, &memory);
    // Use up all kernel memory.
    let allocations: Vec<_> =
        std::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1)).ok()).collect();
    // The sections from the 100th on have no words, and the word reserve suffices for only a few of
    // them.
    let remote = range(DISTANT_PFN, SECTION);
    hotplug.announce(remote).unwrap();
    make_words(&mut hotplug, remote);
    let added = (100..400).take_while(|&nth| plug(&mut hotplug, nth).is_ok()).count();
    assert!(added < 6, "{added}");
    let without_words = (100..400).skip(added);
    for nth in without_words.clone() {
        let error = plug(&mut hotplug, nth).unwrap_err();
        assert!(matches!(error, AddError::NoMetadata(_)), "{error}");
    }
    allocations.into_iter().for_each(|allocated| frames.free_range(allocated).unwrap());
    for nth in without_words.take(MAX_NODES - 1 - added) {
        plug(&mut hotplug, nth).unwrap();
    }
    frames.validated().unwrap();
}

#[test]
fn boot_memory_on_too_many_nodes_is_refused_and_nothing_has_started() {
    let sections = 300;
    let (platform, memory) = (NodePlatform::default(), Memory::new(BOOT_FRAMES + SECTION));
    let frames = Frames::new(&platform);
    let bytes = |nth: u32| {
        let part = range(u64::from(nth) * SECTION, SECTION);
        BootRange { start: part.start().phys_addr(), len: part.bytes() }
    };
    let ram: Vec<_> = (0..sections).map(bytes).collect();
    let nodes: Vec<_> = (0..sections).map(|nth| (bytes(nth), NodeId(node_number(nth)))).collect();
    let mapped_below = range(BOOT_FRAMES, SECTION).end();
    let map = BootMap { nodes: &nodes, mapped_below, ..BootMap::from(ram.as_slice()) };
    let refused = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap_err();
    assert_eq!(refused, BootError::TooManyNodes(NodeId(node_number(256))));
    // An instance with the largest number of nodes boots.
    let map = BootMap { nodes: &nodes[..MAX_NODES], ram: &ram[..MAX_NODES], ..map };
    let hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    assert_eq!(hotplug.nodes().count(), MAX_NODES);
    frames.validated().unwrap();
}

#[test]
fn an_unknown_node_is_the_first_one_online() {
    let (platform, memory) = (NodePlatform::default(), Memory::new(BOOT_FRAMES + 8 * SECTION));
    let frames = Frames::new(&platform);
    // Boot memory is on node 5. Node 0 does not exist.
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let (five, seven, unknown) = (NodeId(5), NodeId(7), NodeId(0xffff_fffe));
    let nodes = [(ram[0], five)];
    let map = BootMap { nodes: &nodes, ..BootMap::from(&ram) };
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    for (nth, number) in [(1, 7), (2, 3)] {
        let memory = section_above_boot(nth);
        hotplug.announce(Announce { node: NodeId(number), ..memory.into() }).unwrap();
        hotplug.add(memory).unwrap();
    }
    hotplug.online(section_above_boot(1), OnlineType::Kernel, &mut NoHooks).unwrap();
    platform.0.store(unknown.0, Ordering::Relaxed);
    for len in [1, 3, PAGEBLOCK] {
        let node_for = |request: AllocRequest| {
            let allocated = frames.alloc_range(request).unwrap();
            frames.free_range(allocated).unwrap();
            frames.node_of(allocated.start()).unwrap().0
        };
        let request = AllocRequest::frames(len);
        assert_eq!(
            [
                node_for(request),
                node_for(request.node(NodeChoice::Near(unknown))),
                node_for(request.node(NodeChoice::Avoiding(unknown)))
            ],
            [5; 3]
        );
        assert_eq!(node_for(request.node(NodeChoice::Near(seven))), 7);
        assert_eq!(
            frames.alloc_range(request.node(NodeChoice::Only(unknown))),
            Err(AllocError::OutOfMemory)
        );
    }
    // Node 3 comes online, and is then the first node online.
    hotplug.online(section_above_boot(2), OnlineType::Kernel, &mut NoHooks).unwrap();
    assert_eq!(hotplug.zone(unknown, Zone::Kernel), ZoneInfo::default());
    assert_eq!(hotplug.nodes().map(|node| node.0).collect::<Vec<_>>(), [3, 5, 7]);
    let mut order = Vec::new();
    while let Ok(allocated) =
        frames.alloc_range(AllocRequest::frames(PAGEBLOCK).node(NodeChoice::Near(unknown)))
    {
        let node = frames.node_of(allocated.start()).unwrap().0;
        if order.last() != Some(&node) {
            order.push(node);
        }
    }
    assert_eq!(order, [3, 5, 7]);
    frames.validated().unwrap();
}
