//! Tests that both subjects give the same answers, and that the numbers of their probes are as
//! documented.

use super::growth::slope;
use super::queried_zone::QueriedZone;
use super::steps::{
    BLOCK, DeviceNode, MachineShape, from_the_ends, from_the_middle, measure, with_gaps,
};
use crate::{bench::subject::Subject, hosted::Hosted};
use hotmem::{Announce, Budget, Bytes, NoHooks, NodeId, OnlineType, PfnRange, Zone};

/// Returns the probes of each of [`STEPS`](super::steps::STEPS) in a zone of one device.
fn probes(gib: u64, kind: OnlineType, subject: Subject) -> Vec<u64> {
    let shape =
        MachineShape { devices: 1, device_size: Bytes::gib(gib), node: DeviceNode::Separate };
    let costs = measure(shape, kind, subject).unwrap();
    costs.into_iter().map(|(_, probes)| probes).collect()
}

#[test]
fn the_baseline_reads_each_pageblock_of_its_walks_and_gives_the_right_answers() {
    for kind in [OnlineType::Kernel, OnlineType::Movable] {
        let shape =
            MachineShape { devices: 2, device_size: Bytes::gib(1), node: DeviceNode::Separate };
        let costs = measure(shape, kind, Subject::Baseline).unwrap();
        let walked: Vec<_> = costs.into_iter().map(|(_, probes)| probes).collect();
        // 16 blocks of 64 pageblocks. After each block, all pageblocks present are walked.
        let plug = (1..=16).sum::<u64>() * 64;
        // As for `plug`. For each removed block except the last, one more probe finds the new end
        // of the span.
        let unplug = (0..16).sum::<u64>() * 64 + 15;
        // While every second block is added, a walk ends at the first pageblock of the first hole.
        // While the holes are filled from the bottom, the walks become longer by two blocks each.
        // The last two walks find no hole.
        let below_hole = |blocks: u64| blocks * 64 + 1;
        let gaps = 64 + 7 * below_hole(1) + (3..15).step_by(2).map(below_hole).sum::<u64>();
        let gaps = gaps + (15 + 16) * 64;
        assert_eq!(walked[..4], [plug, unplug, 16 * 64, gaps]);
        // The walks read half of the zone at first, and less each time.
        assert!(walked[4] > 4000 && walked[5] > 4000, "{walked:?}");
    }
}

#[test]
fn with_low_memory_on_its_node_the_zone_is_contiguous_after_each_block() {
    for subject in [Subject::Baseline, Subject::Hotmem] {
        let machine = DeviceNode::OfBootMemory.machine(Bytes::gib(1)).unwrap();
        let mut hotplug = machine.boot_without_returning_memory().unwrap();
        let node = DeviceNode::OfBootMemory.id();
        hotplug.announce(Announce { node, ..machine.hotplug_range().into() }).unwrap();
        let mut queried_zone = QueriedZone::new(subject, node, Zone::Kernel);
        let blocks: Vec<_> = machine.hotplug_range().chunks(BLOCK).collect();
        for block in &blocks {
            queried_zone.plug(&mut hotplug, OnlineType::Online, &[*block]).unwrap();
            queried_zone.check_answer(true).unwrap();
        }
        assert_eq!(hotplug.zone(node, Zone::Kernel).spanned, machine.hotplug_range());
        for block in blocks.iter().skip(1).rev() {
            queried_zone.unplug(&mut hotplug, &[*block]).unwrap();
            queried_zone.check_answer(true).unwrap();
        }
    }
}

#[test]
fn low_memory_on_the_node_adds_at_most_four_probes_to_a_step() {
    for subject in [Subject::Baseline, Subject::Hotmem] {
        let probes = |node| {
            let shape = MachineShape { devices: 1, device_size: Bytes::gib(2), node };
            let costs = measure(shape, OnlineType::Kernel, subject).unwrap();
            costs.into_iter().map(|(_, probes)| probes).collect::<Vec<_>>()
        };
        let (shared, separate) = (probes(DeviceNode::OfBootMemory), probes(DeviceNode::Separate));
        // `before` walks the same pageblocks. A scan of `hotmem` queries one more zone.
        for (shared, separate) in shared.into_iter().zip(separate) {
            assert!(shared != 0 && shared <= separate + 4, "{shared} and {separate}");
            assert!(subject == Subject::Hotmem || shared == separate, "{shared} and {separate}");
        }
    }
}

/// The probes depend on the number of levels of the engine's trees, and not on the amount of memory.
#[test]
fn the_probes_of_hotmem_for_a_block_have_a_constant_bound() {
    for kind in [OnlineType::Kernel, OnlineType::Movable] {
        let [small, large] = [2, 7].map(|gib| (gib, probes(gib, kind, Subject::Hotmem)));
        for (gib, probes) in [small, large] {
            let blocks = gib * 8;
            // A path has four words, and a search reads some at each of its levels.
            let most = [11, 8, 0, 11, 10, 36].map(|words| words * blocks + 4);
            let within = probes.iter().zip(most).all(|(&probes, most)| probes <= most);
            assert!(within, "{gib} GiB, {kind:?}: {probes:?}, at most {most:?}");
            assert!(probes.iter().all(|&probes| probes > 0), "{probes:?}");
        }
    }
}

#[test]
fn if_memory_stays_offline_only_plug_and_unplug_are_measured_without_probes() {
    for subject in [Subject::Baseline, Subject::Hotmem] {
        assert_eq!(probes(1, OnlineType::Offline, subject), [0, 0]);
    }
}

#[test]
fn blocks_are_removed_from_the_middle_and_from_the_ends() {
    let block = |nth: u64| PfnRange::from_bytes(nth << 27, Bytes::mib(128)).unwrap();
    let numbers = |order: Vec<PfnRange>| -> Vec<u64> {
        order.iter().map(|block| block.start().phys_addr() >> 27).collect()
    };
    let blocks: Vec<_> = (0..6).map(block).collect();
    assert_eq!(numbers(with_gaps(&blocks)), [0, 2, 4, 1, 3, 5]);
    assert_eq!(numbers(from_the_middle(&blocks)), [3, 2, 4, 1, 5, 0]);
    assert_eq!(numbers(from_the_ends(&blocks)), [3, 5, 0, 4, 1, 2]);
    assert_eq!(numbers(from_the_middle(&blocks[..1])), [0]);
    assert_eq!(numbers(from_the_ends(&blocks[..1])), [0]);
}

#[test]
fn both_subjects_find_the_same_number_of_frames_in_use() {
    let machine = Hosted::builder().boot_memory(Bytes::gib(1)).hotplug_size(Bytes::gib(1)).build();
    let machine = machine.unwrap();
    let mut hotplug = machine.boot_without_returning_memory().unwrap();
    let (node, zone) = (NodeId::ZERO, Zone::Movable);
    hotplug.announce(machine.hotplug_range()).unwrap();
    hotplug.add(machine.hotplug_range()).unwrap();
    hotplug.online(machine.hotplug_range(), OnlineType::Movable, &mut NoHooks).unwrap();
    let frames = machine.frames();
    let request = |len| hotmem::AllocRequest::frames(len).movable();
    let held = [1, 3, 512, 700, 64].map(|len| frames.alloc(request(len)).unwrap());
    let used: u64 = held.iter().map(|held| held.range().frames()).sum();
    for has_hole in [false, true] {
        if has_hole {
            let block = machine.hotplug_range().chunks(BLOCK).rev().nth(2).unwrap();
            let mut offline = hotplug.offline(block).unwrap();
            offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
        }
        assert_eq!(hotplug.zone(node, zone).contiguous, !has_hole);
        let count = |subject| QueriedZone::new(subject, node, zone).count_used_frames(&hotplug);
        assert_eq!((count(Subject::Hotmem), count(Subject::Baseline)), (used, used));
    }
}

#[test]
fn the_slope_of_a_square_is_two() {
    let points = [1.0_f64, 2.0, 4.0].map(|x| (x.ln(), (x * x).ln()));
    assert!((slope(&points) - 2.0).abs() < 1e-9);
}
