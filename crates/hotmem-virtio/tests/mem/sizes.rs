//! Tests sizes, block sizes, requests and adoption with a device that follows the specification.

use crate::device::Device;
use crate::memory::{PreparationFailure, Unit};
use crate::setup::Setup;
use core::time::Duration;
use hotmem::Bytes;
use hotmem_virtio::mem::{Obstacle, Pending, Reason, RequestKind, Status, Step};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A multiple of every block size in the tests.
const BASE: u64 = 64 * GIB;
const SECOND: Duration = Duration::from_secs(1);

fn setup(block_size: u64, region_size: u64, requested: u64) -> Setup {
    let mut device = Device::new(block_size, BASE, region_size);
    device.resize(requested);
    Setup::new(device)
}

#[test]
fn memory_is_plugged_unplugged_and_plugged_again_at_every_block_size() {
    for shift in 12..=34 {
        let block = 1 << shift;
        let region = (64 * MIB).max(8 * block);
        let mut setup = setup(block, region, region);
        assert_eq!(setup.poll(), Step::Idle);
        setup.assert_reached();
        assert_eq!(setup.driver.plugged().0, region);
        for size in [region / 2, 0, region / 4, region] {
            setup.device.resize(size);
            assert_eq!(setup.poll(), Step::Idle);
            setup.assert_reached();
        }
    }
}

#[test]
fn requests_are_as_large_as_the_protocol_allows() {
    // 65 535 blocks of 2 MiB are 128 GiB less 2 MiB.
    let mut setup = setup(2 * MIB, 512 * GIB, 512 * GIB);
    setup.poll();
    setup.assert_reached();
    let plugs = [RequestKind::Plug; 5];
    let kinds: Vec<_> = setup.device.requests.iter().map(|&(kind, ..)| kind).collect();
    assert_eq!(kinds, plugs);
    assert_eq!(setup.device.requests[0].2, 65_535 * 2 * MIB);
    setup.device.requests.clear();
    setup.device.resize(0);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.device.requests.len(), 5);
    let (_, first, size) = setup.device.requests[0];
    assert_eq!(
        first + size,
        BASE + 512 * GIB,
        "the driver does not unplug the highest memory first"
    );
    assert_eq!(setup.driver.statistics().requests, 10);
    assert_eq!(setup.driver.statistics().acks, 10);
}

/// A device of twice the size takes twice the time, not four times the time.
#[test]
fn the_cost_of_a_request_does_not_depend_on_the_region() {
    let mut setup = setup(2 * MIB, 512 * GIB, 0);
    setup.poll();
    setup.memory.units_read.set(0);
    setup.device.resize(512 * GIB);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.memory.units_read.get(), setup.memory.units.len());
}

#[test]
fn a_size_that_is_not_whole_units_is_rounded_down() {
    let mut setup = setup(MIB, 64 * MIB, 7 * MIB);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.driver.plugged().0, 6 * MIB);
    setup.device.resize(3 * MIB);
    setup.poll();
    assert_eq!(setup.driver.plugged().0, 2 * MIB);
}

#[test]
fn memory_plugged_at_the_start_is_adopted() {
    let mut device = Device::new(2 * MIB, BASE, GIB);
    for block in (0..100).chain([200, 202, 203, 511]) {
        device.preplug(block);
    }
    device.resize(104 * 2 * MIB);
    let before = device.blocks.clone();
    let mut setup = Setup::new(device);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.device.blocks, before, "the driver plugged or unplugged blocks");
    let states = setup.device.requests.len();
    assert!(states < 64, "{states} STATE requests for 5 runs");
}

#[test]
fn memory_plugged_at_the_start_above_the_requested_size_is_unplugged_without_use() {
    let mut device = Device::new(2 * MIB, BASE, GIB);
    for block in 0..512 {
        device.preplug(block);
    }
    device.resize(0);
    let mut setup = Setup::new(device);
    setup.poll();
    setup.assert_reached();
}

#[test]
fn memory_that_the_manager_cannot_adopt_is_unplugged() {
    let mut device = Device::new(2 * MIB, BASE, GIB);
    for block in 0..8 {
        device.preplug(block);
    }
    device.resize(16 * MIB);
    let mut setup = Setup::new(device);
    setup.memory.next_failures.push_back(PreparationFailure::OneUnit);
    setup
        .memory
        .next_failures
        .push_back(PreparationFailure::Obstacle(Obstacle::Never(Reason::Other("no room"))));
    setup.poll();
    setup.assert_reached();
    let unplugs: Vec<_> =
        setup.device.requests.iter().filter(|r| r.0 == RequestKind::Unplug).collect();
    assert_eq!(unplugs, [&(RequestKind::Unplug, BASE + 2 * MIB, 14 * MIB)]);
}

#[test]
fn blocks_that_do_not_fill_a_unit_are_unplugged() {
    // The region neither starts nor ends on a unit, and blocks are plugged at both ends.
    let mut device = Device::new(256 << 10, BASE + MIB, 33 * MIB);
    for block in [0, 3, 4, 13, 20, 21, 22, 23, 24, 25, 26, 27, 131] {
        device.preplug(block);
    }
    device.resize(16 * MIB);
    let mut setup = Setup::new(device);
    setup.poll();
    setup.assert_reached();
}

#[test]
fn whole_units_next_to_a_mixed_unit_are_adopted() {
    let mut device = Device::new(256 << 10, BASE, 64 * MIB);
    for block in (3..5).chain(8..64) {
        device.preplug(block);
    }
    device.resize(32 * MIB);
    let mut setup = Setup::new(device);
    setup.poll();
    setup.assert_reached();
    let unplugs = setup.device.requests.iter().filter(|r| r.0 == RequestKind::Unplug);
    assert_eq!(
        unplugs.map(|r| r.2).sum::<u64>(),
        512 << 10,
        "memory outside the mixed unit was unplugged"
    );
}

#[test]
fn adoption_queries_as_much_as_the_protocol_allows() {
    let mut device = Device::new(2 * MIB, BASE, 512 * GIB);
    device.resize(512 * GIB);
    device.set_plugged(0..262_144, true);
    let mut setup = Setup::new(device);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.device.requests.len(), 5);
}

#[test]
fn a_resize_during_a_resize_is_followed() {
    let mut setup = setup(2 * MIB, 512 * GIB, 512 * GIB);
    for _ in 0..4 {
        setup.step();
    }
    assert!(setup.driver.plugged().0 > 0 && setup.driver.plugged().0 < 512 * GIB);
    setup.device.resize(64 * GIB);
    setup.poll();
    setup.assert_reached();
    setup.device.resize(0);
    setup.step();
    setup.device.resize(500 * GIB);
    setup.poll();
    setup.assert_reached();
}

#[test]
fn a_preparation_in_several_calls_is_continued_or_cancelled() {
    let mut setup = setup(2 * MIB, GIB, 64 * MIB);
    let working = PreparationFailure::Obstacle(Obstacle::Working);
    setup.memory.next_failures.extend([working; 3]);
    setup.poll();
    setup.assert_reached();
    setup.device.resize(0);
    setup.memory.next_failures.extend([working; 3]);
    assert_eq!(setup.step(), Step::Working);
    assert!(setup.memory.is_working());
    setup.device.resize(128 * MIB);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.memory.cancelled_preparations, 1);
}

#[test]
fn a_blocked_shrink_keeps_its_progress_and_reports_the_reason() {
    let mut setup = setup(2 * MIB, GIB, 64 * MIB);
    setup.poll();
    setup.memory.pinned_units[3] = true;
    setup.device.resize(0);
    assert!(matches!(setup.run(SECOND), Step::Pending(_)));
    assert_eq!(setup.driver.plugged().0, 2 * MIB);
    assert_eq!(setup.memory.units[3], Unit::Plugged);
    assert_eq!(
        setup.driver.status(),
        Status::Pending(Pending::Memory(Reason::Other("nothing can be removed")))
    );
    setup.memory.pinned_units[3] = false;
    setup.run(5 * SECOND);
    setup.assert_reached();
}

#[test]
fn the_lowest_gap_is_filled_first() {
    let mut setup = setup(2 * MIB, GIB, 64 * MIB);
    setup.poll();
    setup.memory.pinned_units[31] = true;
    setup.device.resize(32 * MIB);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.memory.units[31], Unit::Plugged);
    setup.device.requests.clear();
    setup.device.resize(128 * MIB);
    setup.poll();
    setup.assert_reached();
    let plugs: Vec<_> = setup.device.requests.iter().map(|r| (r.1 - BASE, r.2)).collect();
    assert_eq!(plugs, [(30 * MIB, 32 * MIB), (64 * MIB, 64 * MIB)]);
}

#[test]
fn a_permanent_obstacle_lasts_until_the_requested_size_changes() {
    let mut setup = setup(2 * MIB, GIB, 64 * MIB);
    setup
        .memory
        .next_failures
        .push_back(PreparationFailure::Obstacle(Obstacle::Never(Reason::Other("no metadata"))));
    assert_eq!(setup.run(60 * SECOND), Step::Idle);
    assert_eq!(
        setup.driver.status(),
        Status::Pending(Pending::Memory(Reason::Other("no metadata")))
    );
    assert_eq!(setup.driver.statistics().requests, 0);
    setup.device.resize(32 * MIB);
    setup.poll();
    setup.assert_reached();
}

#[test]
fn a_second_driver_adopts_the_memory_of_the_first() {
    let mut setup = setup(2 * MIB, GIB, 64 * MIB);
    setup.poll();
    let config = setup.device.read_config();
    setup.driver = hotmem_virtio::mem::Driver::new(&config, Default::default()).unwrap();
    setup.device.resize(32 * MIB);
    setup.poll();
    setup.assert_reached();
}

#[test]
fn a_size_that_is_not_whole_units_is_pending_and_not_reached() {
    for (requested, reachable) in [(1, 0), (2, 2), (3, 2), (63, 62), (64, 64)]
        .map(|(requested, reachable)| (Bytes::mib(requested), Bytes::mib(reachable)))
    {
        let mut device = Device::new(MIB, 4 << 30, 64 * MIB);
        device.resize(requested.0);
        let mut setup = Setup::new(device);
        assert_eq!(setup.run(Duration::from_secs(60)), Step::Idle);
        let expected = match requested == reachable {
            true => Status::Reached,
            false => Status::Pending(Pending::Units { requested, reachable, unit: Bytes::mib(2) }),
        };
        assert_eq!((setup.driver.status(), setup.driver.plugged()), (expected, reachable));
        let statistics = setup.driver.statistics();
        assert!(
            statistics.postponed_operations == 0 && statistics.requests <= 1,
            "the driver retries a request"
        );
        setup.device.resize(32 * MIB);
        setup.poll();
        assert_eq!(setup.driver.status(), Status::Reached);
    }
    let units =
        Pending::Units { requested: Bytes::mib(1), reachable: Bytes::ZERO, unit: Bytes::mib(2) };
    let text = "the requested size is 1MiB, of which 0B can be plugged in units of 2MiB";
    assert_eq!(units.to_string(), text);
}
