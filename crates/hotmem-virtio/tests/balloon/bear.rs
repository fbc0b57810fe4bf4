//! Devices that are late, silent, or say what nobody asked.

use crate::memory::{Frame, TestMemory};
use crate::world::{MS, World};
use core::time::Duration;
use hotmem_virtio::balloon::{Failure, Features, Pending, Queue, Status, Step};

#[test]
fn a_silent_queue_is_said_once_and_its_answer_still_counts() {
    let second = Duration::from_secs(1);
    let cases = [
        (Queue::Inflate, Features::empty()),
        (Queue::Reports, Features::PAGE_REPORTING),
        (Queue::Hints, Features::FREE_PAGE_HINT),
    ];
    for (queue, features) in cases {
        let target = if queue == Queue::Inflate { 512 } else { 0 };
        let mut world = World::new(features, target, TestMemory::new(0, 2048));
        world.memory.report_from = Duration::ZERO;
        world.device.ask_hints(7);
        world.device.asleep = vec![queue];
        let deadline = world.now + second;
        assert_eq!(world.poll(), Step::WaitUntil(deadline));
        world.now = deadline;
        for _ in 0..5 {
            assert_eq!(world.poll(), Step::Idle);
        }
        assert_eq!(world.driver.status(), Status::Pending(Pending::NoAnswer(queue)));
        assert_eq!(world.driver.counters().overdue, 1);
        assert_eq!(world.device.waiting.len(), 1, "nothing more is sent");
        world.device.asleep.clear();
        world.used = world.device.answer();
        world.run(second);
        world.assert_settled(target);
    }
}

#[test]
fn a_clock_that_jumps_prolongs_nothing() {
    let mut world = World::new(Features::empty(), 512, TestMemory::new(0, 1024));
    world.device.asleep = vec![Queue::Inflate];
    world.now = Duration::from_secs(1000);
    world.poll();
    world.now = MS;
    assert_eq!(world.poll(), Step::WaitUntil(MS + Duration::from_secs(1)));
}

#[test]
fn an_answer_to_nothing_fails_the_device() {
    for queue in Queue::ALL {
        let features = Features::all() - Features::PAGE_POISON;
        let mut world = World::new(features, 0, TestMemory::new(0, 64));
        world.poll();
        if queue == Queue::Statistics {
            world.used = world.device.ask_statistics();
            world.step();
        }
        world.used = Some(queue);
        let failed = Step::Failed(Failure::Stray(queue));
        assert_eq!(world.step(), failed, "{queue:?}");
        // And nothing mends it.
        world.device.config.num_pages = 64;
        world.now += Duration::from_secs(5);
        assert_eq!(world.step(), failed);
        assert_eq!(world.driver.status(), Status::Failed(Failure::Stray(queue)));
    }
}

#[test]
fn an_inflate_answer_on_the_deflate_queue_is_none() {
    let mut world = World::new(Features::empty(), 512, TestMemory::new(0, 1024));
    while world.device.waiting.is_empty() {
        world.step();
    }
    world.used = Some(Queue::Deflate);
    assert_eq!(world.step(), Step::Failed(Failure::Stray(Queue::Deflate)));
    assert_eq!(world.memory.count(Frame::Balloon), 512, "the device may still be at it");
}
