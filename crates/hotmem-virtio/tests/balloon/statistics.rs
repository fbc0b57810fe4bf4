//! Tests statistics.

use crate::memory::TestMemory;
use crate::world::{MS, World};
use core::time::Duration;
use hotmem_virtio::balloon::{Features, MemoryStatistics, Message, Statistic, Step};

fn world() -> World {
    World::new(Features::STATS_VQ, 0, TestMemory::new(0, 64))
}

#[test]
fn the_first_statistics_are_sent_immediately_and_later_ones_on_request() {
    let mut world = world();
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.device.sent.len(), 1);
    assert_eq!(world.poll(), Step::Idle);
    for n in 2..10 {
        world.now += Duration::from_secs(1);
        world.memory.statistics = MemoryStatistics::default().with(Statistic::Free, n);
        world.used = world.device.request_statistics();
        assert_eq!(world.poll(), Step::Idle);
        let Some(Message::Statistics(last)) = world.device.sent.last() else { panic!() };
        assert_eq!(last.get(Statistic::Free), Some(n));
        assert_eq!(world.device.sent.len() as u64, n);
    }
}

#[test]
fn statistics_are_sent_at_most_ten_times_a_second() {
    let mut world = world();
    world.poll();
    let end = world.now + Duration::from_secs(1);
    while world.now < end {
        if world.device.kept.is_some() {
            world.used = world.device.request_statistics();
        }
        let step = world.poll();
        if let Step::Pending(until) = step {
            assert!(until <= world.now + 100 * MS);
        }
        world.now += MS;
    }
    assert!((9..=11).contains(&world.device.sent.len()), "{}", world.device.sent.len());
}

#[test]
fn a_kernel_without_statistics_sends_none() {
    let mut world = world();
    world.memory.statistics = MemoryStatistics::default();
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.device.sent, []);
}
