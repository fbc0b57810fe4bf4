//! Compares the spans, the counts and the contiguity of zones with the states of all pageblocks.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range};

/// Computes the span and the number of online frames of a zone by a query of every pageblock.
fn walk_zone(
    hotplug: &Hotplug<'_, OneCpu>,
    node: NodeId,
    zone: Zone,
    nodes: &[(PfnRange, NodeId)],
) -> (PfnRange, u64) {
    let target = State::from(zone);
    let mut online = Vec::new();
    for (range, range_node) in nodes {
        for block in range.chunks(PAGEBLOCK) {
            if *range_node == node
                && hotplug.state_at(block.start(), block.end()) == (block, target)
            {
                online.push(block);
            }
        }
    }
    let start = online.iter().map(|b| b.start()).min();
    let end = online.iter().map(|b| b.end()).max();
    let span = start.zip(end).map_or(PfnRange::EMPTY, |(s, e)| PfnRange::new(s, e).unwrap());
    (span, online.len() as u64 * PAGEBLOCK)
}

#[test]
fn zones_agree_with_a_walk_through_random_changes() {
    let frames = &Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let memory = Memory::new(20 * SECTION);
    let mut hotplug = hotmem_testkit::start(frames, memory.direct_map(), &ram).unwrap();
    // Memory of nodes 1, 2 and 1, with holes between them.
    let node = NodeId;
    let regions = [
        (range(2 * SECTION, 4 * SECTION), node(1)),
        (range(6 * SECTION, 4 * SECTION), node(2)),
        (range(12 * SECTION, 4 * SECTION), node(1)),
    ];
    for (region, node) in regions {
        hotplug.announce(Announce { node, ..region.into() }).unwrap();
    }
    let mut rng = Rng::with_seed(5);
    let mut outcomes = [0; 2];
    for _ in 0..3000 {
        let (region, _) = regions[rng.usize(..3)];
        let blocks = usize::try_from(region.frames() / PAGEBLOCK).unwrap();
        let first = rng.usize(..blocks);
        let count = 1 + rng.usize(..blocks - first);
        let start = region.start().checked_add(first as u64 * PAGEBLOCK).unwrap();
        let part = PfnRange::with_len(start, count as u64 * PAGEBLOCK).unwrap();
        let (run, state) = hotplug.state_at(part.start(), part.end());
        match state {
            State::Absent if rng.usize(..4) == 0 => {
                hotplug.add(AddRequest { device: true, ..run.into() }).unwrap()
            }
            State::Absent => hotplug.add(run).unwrap(),
            State::Device if rng.usize(..4) == 0 => hotplug.detach_raw(run).unwrap(),
            State::Device => {
                let kinds = [OnlineType::Online, OnlineType::Movable, OnlineType::Offline];
                hotplug.device_to_ram_raw(run, kinds[rng.usize(..3)], &mut NoHooks).unwrap();
            }
            State::Offline if rng.usize(..4) == 0 => hotplug.ram_to_device(run).unwrap(),
            State::Offline if rng.usize(..3) == 0 => hotplug.remove(run).unwrap(),
            State::Offline => {
                let kinds = [OnlineType::Kernel, OnlineType::Movable, OnlineType::AsBefore];
                hotplug.online(run, kinds[rng.usize(..3)], &mut NoHooks).unwrap();
            }
            State::Online | State::OnlineMovable => {
                let mut offline = hotplug.offline(run).unwrap();
                let done = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
                assert_eq!(done, Progress::Ready(run));
            }
            State::Unknown | State::Removing => unreachable!("all regions stay announced"),
        }
        for n in [1, 2].map(node) {
            for zone in Zone::ALL {
                let info = hotplug.zone(n, zone);
                let (span, online) = walk_zone(&hotplug, n, zone, &regions);
                assert_eq!((info.spanned, info.online), (span, online));
                assert_eq!(info.present, online);
                assert_eq!(info.contiguous, online != 0 && span.frames() == online);
                if online != 0 {
                    outcomes[usize::from(info.contiguous)] += 1;
                }
            }
        }
    }
    assert!(
        outcomes[0] > 10 && outcomes[1] > 10,
        "zones must be contiguous and not contiguous often: {outcomes:?}"
    );
}

#[test]
fn a_zone_is_not_contiguous_before_boot_is_complete() {
    let frames = &Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: range(0, 2 * SECTION).bytes() }];
    let memory = Memory::new(2 * SECTION);
    let mut hotplug = hotmem_testkit::start(frames, memory.direct_map(), &ram).unwrap();
    assert!(hotplug.zone(NodeId::ZERO, Zone::Kernel).contiguous);
    hotplug.settings.boot_complete = false;
    assert!(!hotplug.zone(NodeId::ZERO, Zone::Kernel).contiguous);
}

#[test]
fn holes_and_reserved_frames_of_online_pageblocks_count_as_contiguous() {
    let frames = &Frames::new(OneCpu);
    let frame = geometry::FRAME_SIZE;
    let ram = [
        BootRange { start: 0, len: Bytes(3 * frame) },
        BootRange { start: 4 * frame, len: Bytes(range(0, SECTION).bytes().0 - 4 * frame) },
    ];
    let reserved = [BootRange { start: frame, len: Bytes(1) }];
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    let memory = Memory::new(SECTION);
    let hotplug = hotmem_testkit::start(frames, memory.direct_map(), map).unwrap();
    let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
    assert_eq!(
        (zone.spanned, zone.online, zone.present),
        (range(0, SECTION), SECTION, SECTION - 1)
    );
    assert!(zone.contiguous);
}

#[test]
fn reserved_memory_that_was_freed_leaves_with_its_pageblock() {
    let frames = &Frames::new(OneCpu);
    let section = range(0, SECTION).bytes();
    let ram = [BootRange { start: 0, len: Bytes(2 * section.0) }];
    let ramdisk = range(SECTION, SECTION);
    let reserved = [BootRange { start: section.0, len: section }];
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    let memory = Memory::new(2 * SECTION);
    let mut hotplug = hotmem_testkit::start(frames, memory.direct_map(), map).unwrap();
    assert_eq!(hotplug.zone(NodeId::ZERO, Zone::Kernel).present, 2 * SECTION);
    frames.free_range(ramdisk).unwrap();
    let twice = RangeError { range: range(SECTION, PAGEBLOCK), kind: RangeErrorKind::NotAllocated };
    assert_eq!(frames.free_range(ramdisk), Err(twice));
    let mut offline = hotplug.offline(ramdisk).unwrap();
    let done = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(ramdisk));
    assert_eq!(hotplug.zone(NodeId::ZERO, Zone::Kernel).present, SECTION);
}

#[test]
fn each_run_of_boot_memory_on_one_node_becomes_a_region() {
    let frames = &Frames::new(OneCpu);
    let section = range(0, SECTION).bytes().0;
    let ram = [BootRange { start: 0, len: Bytes(4 * section) }];
    let node = NodeId;
    let part = |n: u64| BootRange { start: n * section, len: Bytes(section) };
    let nodes = [(part(2), node(0)), (part(1), node(1)), (part(3), node(1)), (part(0), node(0))];
    let map = BootMap { nodes: &nodes, ..BootMap::from(&ram) };
    let memory = Memory::new(4 * SECTION);
    let hotplug = hotmem_testkit::start(frames, memory.direct_map(), map).unwrap();
    frames.validated().unwrap();
    assert_eq!(hotplug.regions().count(), 4);
    for n in [0, 1].map(node) {
        let zone = hotplug.zone(n, Zone::Kernel);
        assert_eq!((zone.online, zone.spanned.frames()), (2 * SECTION, 3 * SECTION));
        assert!(!zone.contiguous);
    }
}
