//! Tests devices that answer late, never, or without a request.

use crate::memory::{Frame, TestMemory};
use crate::world::{MS, World};
use core::time::Duration;
use hotmem_virtio::balloon::{
    Action, Driver, Failure, Features, Memory, Pending, Queue, Status, Step,
};

#[test]
fn an_overdue_answer_is_reported_once_and_still_counts() {
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
        world.device.request_hints(7);
        world.device.asleep = vec![queue];
        let deadline = world.now + second;
        let mut looks = 0;
        while world.now < deadline && looks < 20 {
            let Step::Pending(until) = world.poll() else { panic!("{queue:?}") };
            assert!(until > world.now && (queue == Queue::Hints || until == deadline));
            (world.now, looks) = (until, looks + 1);
        }
        // The device does not interrupt for the answer to a hint, so the driver polls at growing
        // intervals.
        let expected = if queue == Queue::Hints { 16..=20 } else { 1..=1 };
        assert!(expected.contains(&looks), "{queue:?}: {looks} checks");
        for _ in 0..5 {
            assert_eq!(world.poll(), Step::Pending(deadline + second));
        }
        assert_eq!(world.driver.status(), Status::Pending(Pending::NoAnswer(queue)));
        assert_eq!(world.driver.counters().overdue, 1);
        assert_eq!(world.device.waiting.len(), 1, "the driver sends a further request");
        world.device.asleep.clear();
        world.used = world.device.answer();
        world.run(second);
        world.assert_settled(target);
    }
}

/// Returns a world for each queue, with a device that does not answer on it.
fn worlds_without_an_answer() -> impl Iterator<Item = (Queue, World)> {
    let cases = [
        (Queue::Inflate, Features::empty()),
        (Queue::Deflate, Features::empty()),
        (Queue::Reports, Features::PAGE_REPORTING),
        (Queue::Hints, Features::FREE_PAGE_HINT),
    ];
    cases.into_iter().map(|(queue, features)| {
        let target = if matches!(queue, Queue::Inflate | Queue::Deflate) { 512 } else { 0 };
        let mut world = World::new(features, target, TestMemory::new(0, 2048));
        if queue == Queue::Deflate {
            world.poll();
            world.device.config.num_pages = 0;
        }
        world.memory.report_from = Duration::ZERO;
        world.device.request_hints(7);
        world.device.asleep = vec![queue];
        (queue, world)
    })
}

/// Returns the first wait for an answer. Hints are polled, because they have no interrupt.
fn first_wait(queue: Queue, otherwise: Duration) -> Duration {
    if queue == Queue::Hints { Duration::from_micros(20) } else { otherwise }
}

#[test]
fn a_device_that_never_answers_must_be_reset() {
    let second = Duration::from_secs(1);
    for (queue, mut world) in worlds_without_an_answer() {
        let began = world.now;
        assert_eq!(world.poll(), Step::Pending(began + first_wait(queue, second)));
        while let Step::Pending(until) = world.poll() {
            world.now = until;
        }
        assert_eq!(world.now, began + Driver::DEFAULT_ANSWER_TIMEOUT);
        assert_eq!(
            world.poll(),
            Step::Ready(Ok(Action::Reset(queue))),
            "until there is another driver"
        );
        world.device.reset();
        world.memory.device_reset();
        assert_eq!(world.memory.count(Frame::Free) + world.memory.count(Frame::Reported), 2048);
        let config = world.device.config;
        world.driver =
            Driver::new(world.driver.features(), &config).with_counters_of(&world.driver);
        assert_eq!(world.driver.counters().resets, 1);
        world.device.asleep.clear();
        world.run(second);
        world.assert_settled(config.num_pages);
    }
}

#[test]
fn a_machine_stopped_together_with_its_device_does_not_reset_it() {
    let hour = Duration::from_secs(3600);
    for (_, mut world) in worlds_without_an_answer() {
        world.poll();
        world.now += hour;
        assert_eq!(world.poll(), Step::Pending(world.now + Duration::from_secs(1)));
        world.device.asleep.clear();
        world.used = world.device.answer();
        world.run(hour);
        world.assert_settled(world.device.config.num_pages);
        assert_eq!(world.driver.counters().resets, 0);
    }
}

#[test]
fn the_maximal_time_for_an_answer_can_be_set() {
    for (queue, mut world) in worlds_without_an_answer() {
        world.driver = world.driver.with_answer_timeout(70 * MS);
        let began = world.now;
        assert_eq!(world.poll(), Step::Pending(began + first_wait(queue, 70 * MS)));
        world.now += 70 * MS;
        assert_eq!(world.poll(), Step::Ready(Ok(Action::Reset(queue))));
    }
}

#[test]
fn a_clock_that_jumps_does_not_prolong_a_wait() {
    let mut world = World::new(Features::empty(), 512, TestMemory::new(0, 1024));
    world.device.asleep = vec![Queue::Inflate];
    world.now = Duration::from_secs(1000);
    world.poll();
    world.now = MS;
    assert_eq!(world.poll(), Step::Pending(MS + Duration::from_secs(1)));
}

#[test]
fn an_answer_without_a_request_fails_the_device() {
    for queue in Queue::ALL {
        let features = Features::all() - Features::PAGE_POISON;
        let mut world = World::new(features, 0, TestMemory::new(0, 64));
        world.poll();
        if queue == Queue::Statistics {
            world.used = world.device.request_statistics();
            world.step();
        }
        world.used = Some(queue);
        let failed = Step::Ready(Err(Failure::Stray(queue)));
        assert_eq!(world.step(), failed, "{queue:?}");
        // The failure is permanent.
        world.device.config.num_pages = 64;
        world.now += Duration::from_secs(5);
        assert_eq!(world.step(), failed);
        assert_eq!(world.driver.status(), Status::Failed(Failure::Stray(queue)));
    }
}

#[test]
fn an_answer_on_the_wrong_queue_fails_the_device() {
    let mut world = World::new(Features::empty(), 512, TestMemory::new(0, 1024));
    while world.device.waiting.is_empty() {
        world.step();
    }
    world.used = Some(Queue::Deflate);
    assert_eq!(world.step(), Step::Ready(Err(Failure::Stray(Queue::Deflate))));
    assert_eq!(
        world.memory.count(Frame::Balloon),
        512,
        "memory is free although the device may still access it"
    );
}
