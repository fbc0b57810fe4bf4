//! Tests free page reports.

use crate::memory::{Frame, TestMemory};
use crate::world::{MS, World};
use core::time::Duration;
use hotmem_virtio::balloon::{Features, Message, Queue, Step};

fn world() -> World {
    let mut world = World::new(Features::PAGE_REPORTING, 0, TestMemory::new(0, 64 * 512));
    world.memory.report_from = Duration::ZERO;
    world
}

#[test]
fn all_free_memory_is_reported_in_batches_and_marked() {
    let mut world = world();
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.memory.count(Frame::Reported), 64 * 512);
    let reports: Vec<_> = world.device.sent.iter().collect();
    assert_eq!(reports.len(), 2);
    for report in reports {
        let Message::Report(ranges) = report else { panic!("{report:?}") };
        assert_eq!(ranges.as_slice().len(), 32);
    }
    let counters = world.driver.counters();
    assert_eq!((counters.reports, counters.reported), (2, 64 * 512));
}

#[test]
fn a_report_has_at_most_the_number_of_ranges_that_the_device_allows() {
    for most in [1, 3, 16] {
        let mut world = world();
        world.driver = world.driver.with_max_report_ranges(most);
        world.poll();
        assert_eq!(world.memory.count(Frame::Reported), 64 * 512);
        let ranges = |message: &Message| match message {
            Message::Report(ranges) => ranges.as_slice().len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(world.device.sent.iter().map(ranges).max(), Some(most));
    }
}

#[test]
fn an_idle_reporter_sets_no_timer() {
    let mut world = world();
    world.poll();
    for _ in 0..10 {
        assert_eq!(world.poll(), Step::Idle);
    }
    assert_eq!(world.device.sent.len(), 2);
    world.memory.change(1000, Frame::Free);
    world.poll();
    assert_eq!(world.device.sent.len(), 3);
}

#[test]
fn the_kernel_decides_the_time_of_reports() {
    let mut world = world();
    world.memory.report_from = world.now + 50 * MS;
    assert_eq!(world.poll(), Step::Pending(world.now + 50 * MS));
    assert_eq!(world.device.sent, []);
    world.run(60 * MS);
    assert_eq!(world.device.sent.len(), 2);
}

#[test]
fn the_balloon_works_while_a_report_is_outstanding() {
    let mut world = world();
    world.device.asleep = vec![Queue::Reports];
    world.memory.batch = 1;
    world.device.config.num_pages = 1024;
    world.poll();
    world.assert_settled(1024);
    assert_eq!(world.memory.count(Frame::Out), 512);
}
