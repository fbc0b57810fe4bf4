//! Tests statistics.

use crate::memory::TestMemory;
use crate::setup::{MS, Setup};
use core::time::Duration;
use hotmem_virtio::balloon::{Features, MemoryStatistics, Message, Statistic, Step};

fn setup() -> Setup {
    Setup::new(Features::STATS_VQ, 0, TestMemory::new(0, 64))
}

#[test]
fn the_first_statistics_are_sent_immediately_and_later_ones_on_request() {
    let mut setup = setup();
    assert_eq!(setup.poll(), Step::Idle);
    assert_eq!(setup.device.messages.len(), 1);
    assert_eq!(setup.poll(), Step::Idle);
    for n in 2..10 {
        setup.now += Duration::from_secs(1);
        setup.memory.statistics = MemoryStatistics::default().with(Statistic::Free, n);
        setup.answered_queue = setup.device.request_statistics();
        assert_eq!(setup.poll(), Step::Idle);
        let Some(Message::Statistics(last)) = setup.device.messages.last() else { panic!() };
        assert_eq!(last.get(Statistic::Free), Some(n));
        assert_eq!(setup.device.messages.len() as u64, n);
    }
}

#[test]
fn statistics_are_sent_at_most_ten_times_a_second() {
    let mut setup = setup();
    setup.poll();
    let end = setup.now + Duration::from_secs(1);
    while setup.now < end {
        if setup.device.statistics_buffer.is_some() {
            setup.answered_queue = setup.device.request_statistics();
        }
        let step = setup.poll();
        if let Step::Pending(until) = step {
            assert!(until <= setup.now + 100 * MS);
        }
        setup.now += MS;
    }
    assert!((9..=11).contains(&setup.device.messages.len()), "{}", setup.device.messages.len());
}

#[test]
fn a_kernel_without_statistics_sends_a_buffer_without_any_that_a_device_knows() {
    let mut setup = setup();
    setup.memory.statistics = MemoryStatistics::default();
    assert_eq!(setup.poll(), Step::Idle);
    let [Message::Statistics(sent)] = setup.device.messages[..] else { panic!() };
    let (bytes, len) = sent.to_bytes();
    assert_eq!(bytes[..len], [0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_kernel_that_has_statistics_only_later_sends_them_then() {
    let mut setup = setup();
    setup.memory.statistics = MemoryStatistics::default();
    assert_eq!(setup.poll(), Step::Idle);
    let free = MemoryStatistics::default().with(Statistic::Free, 1);
    setup.memory.statistics = free;
    setup.now += Duration::from_secs(1);
    setup.answered_queue = setup.device.request_statistics();
    assert_eq!(setup.poll(), Step::Idle);
    assert_eq!(setup.device.messages.last(), Some(&Message::Statistics(free)));
}

#[test]
fn a_kernel_that_has_no_value_any_more_repeats_its_last_one() {
    let mut setup = setup();
    let kills = Statistic::OutOfMemoryKills;
    for (given, expected) in [(Some(3), 3), (None, 3), (Some(4), 4), (None, 4)] {
        let free = MemoryStatistics::default().with(Statistic::Free, 1);
        setup.memory.statistics = given.map_or(free, |value| free.with(kills, value));
        assert_eq!(setup.poll(), Step::Idle);
        let Some(Message::Statistics(last)) = setup.device.messages.last() else { panic!() };
        assert_eq!(last.get(kills), Some(expected));
        setup.now += Duration::from_secs(1);
        setup.answered_queue = setup.device.request_statistics();
    }
}
