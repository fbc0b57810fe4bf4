//! Tests devices that answer late, never, or without a request.

use crate::memory::{Frame, TestMemory};
use crate::setup::{MS, Setup};
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
        let mut setup = Setup::new(features, target, TestMemory::new(0, 2048));
        setup.memory.report_from = Duration::ZERO;
        setup.device.request_hints(7);
        setup.device.silent_queues = vec![queue];
        let deadline = setup.now + second;
        let mut polls = 0;
        while setup.now < deadline && polls < 20 {
            let Step::Pending(until) = setup.poll() else { panic!("{queue:?}") };
            assert!(until > setup.now && (queue == Queue::Hints || until == deadline));
            (setup.now, polls) = (until, polls + 1);
        }
        // The device does not interrupt for the answer to a hint, so the driver polls at growing
        // intervals.
        let expected = if queue == Queue::Hints { 16..=20 } else { 1..=1 };
        assert!(expected.contains(&polls), "{queue:?}: {polls} polls");
        for _ in 0..5 {
            assert_eq!(setup.poll(), Step::Pending(deadline + second));
        }
        assert_eq!(setup.driver.status(), Status::Pending(Pending::NoAnswer(queue)));
        assert_eq!(setup.driver.counters().overdue_requests, 1);
        assert_eq!(setup.device.unanswered.len(), 1, "the driver sends a further request");
        setup.device.silent_queues.clear();
        setup.answered_queue = setup.device.answer();
        setup.run(second);
        setup.assert_settled(target);
    }
}

/// Returns a setup for each of four queues, with a device that does not answer on the queue.
fn setups_with_a_silent_queue() -> impl Iterator<Item = (Queue, Setup)> {
    let cases = [
        (Queue::Inflate, Features::empty()),
        (Queue::Deflate, Features::empty()),
        (Queue::Reports, Features::PAGE_REPORTING),
        (Queue::Hints, Features::FREE_PAGE_HINT),
    ];
    cases.into_iter().map(|(queue, features)| {
        let target = if matches!(queue, Queue::Inflate | Queue::Deflate) { 512 } else { 0 };
        let mut setup = Setup::new(features, target, TestMemory::new(0, 2048));
        if queue == Queue::Deflate {
            setup.poll();
            setup.device.config.num_pages = 0;
        }
        setup.memory.report_from = Duration::ZERO;
        setup.device.request_hints(7);
        setup.device.silent_queues = vec![queue];
        (queue, setup)
    })
}

/// Returns the driver's first wait for an answer: the maximal time, or less for a hint, which the
/// driver polls because its answer causes no interrupt.
fn first_wait(queue: Queue, max: Duration) -> Duration {
    if queue == Queue::Hints { Duration::from_micros(20) } else { max }
}

#[test]
fn a_device_that_never_answers_must_be_reset() {
    let second = Duration::from_secs(1);
    for (queue, mut setup) in setups_with_a_silent_queue() {
        let start = setup.now;
        assert_eq!(setup.poll(), Step::Pending(start + first_wait(queue, second)));
        while let Step::Pending(until) = setup.poll() {
            setup.now = until;
        }
        assert_eq!(setup.now, start + Driver::DEFAULT_ANSWER_TIMEOUT);
        assert_eq!(
            setup.poll(),
            Step::Ready(Ok(Action::Reset(queue))),
            "the driver does not repeat its request for a reset"
        );
        setup.device.reset();
        setup.memory.device_reset();
        assert_eq!(setup.memory.count(Frame::Free) + setup.memory.count(Frame::Reported), 2048);
        let config = setup.device.config;
        setup.driver =
            Driver::new(setup.driver.features(), &config).with_counters_of(&setup.driver);
        assert_eq!(setup.driver.counters().resets, 1);
        setup.device.silent_queues.clear();
        setup.run(second);
        setup.assert_settled(config.num_pages);
    }
}

#[test]
fn a_machine_stopped_together_with_its_device_does_not_reset_it() {
    let hour = Duration::from_secs(3600);
    for (_, mut setup) in setups_with_a_silent_queue() {
        setup.poll();
        setup.now += hour;
        assert_eq!(setup.poll(), Step::Pending(setup.now + Duration::from_secs(1)));
        setup.device.silent_queues.clear();
        setup.answered_queue = setup.device.answer();
        setup.run(hour);
        setup.assert_settled(setup.device.config.num_pages);
        assert_eq!(setup.driver.counters().resets, 0);
    }
}

#[test]
fn the_maximal_time_for_an_answer_can_be_set() {
    for (queue, mut setup) in setups_with_a_silent_queue() {
        setup.driver = setup.driver.with_answer_timeout(70 * MS);
        let start = setup.now;
        assert_eq!(setup.poll(), Step::Pending(start + first_wait(queue, 70 * MS)));
        setup.now += 70 * MS;
        assert_eq!(setup.poll(), Step::Ready(Ok(Action::Reset(queue))));
    }
}

#[test]
fn a_clock_that_jumps_does_not_prolong_a_wait() {
    let mut setup = Setup::new(Features::empty(), 512, TestMemory::new(0, 1024));
    setup.device.silent_queues = vec![Queue::Inflate];
    setup.now = Duration::from_secs(1000);
    setup.poll();
    setup.now = MS;
    assert_eq!(setup.poll(), Step::Pending(MS + Duration::from_secs(1)));
}

#[test]
fn an_answer_without_a_request_fails_the_device() {
    for queue in Queue::ALL {
        let features = Features::all() - Features::PAGE_POISON;
        let mut setup = Setup::new(features, 0, TestMemory::new(0, 64));
        setup.poll();
        if queue == Queue::Statistics {
            setup.answered_queue = setup.device.request_statistics();
            setup.step();
        }
        setup.answered_queue = Some(queue);
        let failed = Step::Ready(Err(Failure::Stray(queue)));
        assert_eq!(setup.step(), failed, "{queue:?}");
        // The failure is permanent.
        setup.device.config.num_pages = 64;
        setup.now += Duration::from_secs(5);
        assert_eq!(setup.step(), failed);
        assert_eq!(setup.driver.status(), Status::Failed(Failure::Stray(queue)));
    }
}

#[test]
fn an_answer_on_the_wrong_queue_fails_the_device() {
    let mut setup = Setup::new(Features::empty(), 512, TestMemory::new(0, 1024));
    while setup.device.unanswered.is_empty() {
        setup.step();
    }
    setup.answered_queue = Some(Queue::Deflate);
    assert_eq!(setup.step(), Step::Ready(Err(Failure::Stray(Queue::Deflate))));
    assert_eq!(
        setup.memory.count(Frame::Balloon),
        512,
        "memory is free although the device may still access it"
    );
}
