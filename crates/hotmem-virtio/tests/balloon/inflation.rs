//! Tests inflating and deflating.

use crate::memory::{Frame, TestMemory};
use crate::setup::{MS, Setup};
use core::time::Duration;
use hotmem::PfnRange;
use hotmem_virtio::balloon::{
    Action, DeflateRequest, Driver, Failure, Features, FrameList, Message, Obstacle, Pending,
    Reason, Status, Step,
};

const NO_FEATURES: Features = Features::empty();

#[test]
fn every_size_is_reached_by_requests_of_256_frames() {
    let mut setup = Setup::new(NO_FEATURES, 0, TestMemory::new(0x1000, 4096));
    setup.poll();
    setup.assert_settled(0);
    for target in [1, 0, 256, 257, 4096, 512, 3000, 0] {
        setup.device.config.num_pages = target;
        setup.poll();
        setup.assert_settled(target);
    }
    let lengths = setup.device.messages.iter().map(|message| match message {
        Message::Inflate(frames) | Message::Deflate(frames) => frames.frames(),
        other => panic!("{other:?}"),
    });
    assert_eq!(lengths.max(), Some(256));
    assert_eq!(setup.memory.count(Frame::Free), 4096);
}

#[test]
fn the_field_actual_is_written_for_a_device_that_was_used_before() {
    let mut setup = Setup::new(NO_FEATURES, 0, TestMemory::new(0, 16));
    assert_eq!(setup.device.actual_pages, 99);
    assert_eq!(setup.step(), Step::Ready(Ok(Action::SetActual(0))));
    assert_eq!(setup.step(), Step::Idle);
}

#[test]
fn the_balloon_inflates_by_short_ranges() {
    let mut memory = TestMemory::new(7, 1000);
    memory.max_run = 3;
    let mut setup = Setup::new(NO_FEATURES, 999, memory);
    setup.poll();
    setup.assert_settled(999);
}

#[test]
fn frames_change_their_owner_only_after_the_device_has_answered() {
    for (from, to) in [(0, 512), (512, 0)] {
        let mut setup = Setup::new(NO_FEATURES, from, TestMemory::new(0, 1024));
        setup.poll();
        setup.device.config.num_pages = to;
        let before = setup.memory.count(Frame::Free);
        while setup.device.unanswered.is_empty() {
            setup.step();
        }
        for _ in 0..5 {
            setup.step();
            assert_eq!(setup.device.unanswered.len(), 1, "the driver sends a second request");
            assert!(setup.memory.count(Frame::Free) <= before);
            assert_eq!(
                setup.driver.inflated_frames(),
                u64::from(from),
                "unchanged until the device has answered"
            );
        }
        setup.poll();
        setup.assert_settled(to);
    }
}

#[test]
fn min_free_frames_stay_free_however_large_the_target_is() {
    let mut memory = TestMemory::new(0, 4096);
    memory.min_free = 1000;
    let mut setup = Setup::new(NO_FEATURES, u32::MAX, memory);
    let Step::Pending(until) = setup.poll() else { panic!("{:?}", setup.driver) };
    assert_eq!(until, setup.now + MS, "the driver does not retry");
    assert_eq!(setup.memory.count(Frame::Free), 1000);
    assert_eq!(setup.device.actual_pages, 3096);
    let pending = Pending::Memory(Reason::Other("the kernel keeps the rest"));
    assert_eq!(setup.driver.status(), Status::Pending(pending));
    // Later tries, at growing intervals, find no memory either, so they send nothing.
    let before = setup.device.messages.len();
    setup.run(Duration::from_secs(60));
    assert_eq!(setup.device.messages.len(), before);
    setup.device.config.num_pages = 5;
    setup.poll();
    setup.assert_settled(5);
}

#[test]
fn memory_above_16_tib_is_refused_and_not_truncated() {
    let limit = FrameList::FRAME_LIMIT.number();
    let mut setup = Setup::new(NO_FEATURES, 512, TestMemory::new(limit - 256, 1024));
    setup.poll();
    assert_eq!(setup.driver.inflated_frames(), 256, "the part below the limit is not inflated");
    assert_eq!(setup.memory.count(Frame::Free), 768, "the part above the limit is not freed");
    assert_eq!(setup.device.balloon.last(), Some(&u32::MAX));
    let pending = Pending::Memory(Reason::Other("only memory above 16 TiB is left"));
    assert_eq!(setup.driver.status(), Status::Pending(pending));
    setup.run(Duration::from_secs(60));
    assert_eq!(setup.device.messages.len(), 1);
}

#[test]
fn one_request_names_many_short_ranges() {
    let mut memory = TestMemory::new(0, 4096);
    (0..4096).step_by(2).for_each(|index| memory.change(index, Frame::Used));
    let mut setup = Setup::new(NO_FEATURES, 2048, memory);
    setup.poll();
    setup.assert_settled(2048);
    assert_eq!(setup.device.messages.len(), 2048 / 256);
    setup.device.config.num_pages = 0;
    setup.poll();
    setup.assert_settled(0);
    assert_eq!(setup.device.messages.len(), 2 * 2048 / 256);
}

#[test]
fn temporary_obstacles_are_retried() {
    let mut setup = Setup::new(NO_FEATURES, 512, TestMemory::new(0, 1024));
    setup.memory.obstacles.extend([
        Obstacle::Working,
        Obstacle::Later(Reason::Other("busy")),
        Obstacle::Later(Reason::Other("busy")),
        Obstacle::Working,
    ]);
    assert_eq!(setup.poll(), Step::Pending(setup.now + MS));
    assert_eq!(setup.driver.status(), Status::Pending(Pending::Memory(Reason::Other("busy"))));
    setup.run(Duration::from_secs(1));
    setup.assert_settled(512);
}

#[test]
fn a_permanent_obstacle_lasts_until_the_target_changes() {
    let mut setup = Setup::new(NO_FEATURES, 512, TestMemory::new(0, 1024));
    setup.memory.obstacles.push_back(Obstacle::Never(Reason::Other("no")));
    assert_eq!(setup.poll(), Step::Idle);
    assert_eq!(setup.poll(), Step::Idle);
    assert_eq!(setup.driver.status(), Status::Pending(Pending::Memory(Reason::Other("no"))));
    setup.device.config.num_pages = 511;
    setup.poll();
    setup.assert_settled(511);
}

#[test]
fn a_target_that_keeps_changing_is_followed_at_a_limited_rate() {
    let mut setup = Setup::new(NO_FEATURES, 0, TestMemory::new(0, 4096));
    for n in 0..20 {
        setup.device.config.num_pages = 4000 + n;
        setup.step();
    }
    assert_eq!(setup.driver.status(), Status::Pending(Pending::TargetUnsteady));
    setup.device.config.num_pages = 100;
    setup.run(Duration::from_secs(10));
    setup.assert_settled(100);
}

#[test]
fn a_guest_without_memory_deflates_if_that_is_negotiated() {
    for (features, expected) in [(Features::DEFLATE_ON_OOM, 2048 - 600), (NO_FEATURES, 2048)] {
        let mut setup = Setup::new(features, 2048, TestMemory::new(0, 4096));
        setup.poll();
        setup.memory.min_free = 4096;
        setup.memory.deflate_request.needed_frames = 600;
        setup.run(Duration::from_secs(1));
        assert_eq!(setup.driver.inflated_frames(), expected);
        assert_eq!(setup.device.balloon.len() as u64, expected);
        // The driver inflates again later.
        setup.memory.min_free = 0;
        setup.memory.deflate_request = DeflateRequest::default();
        setup.run(Duration::from_secs(20));
        setup.assert_settled(2048);
    }
}

#[test]
fn frames_that_must_leave_are_replaced_and_the_balloon_is_never_too_small() {
    let mut setup = Setup::new(NO_FEATURES, 2048, TestMemory::new(0, 4096));
    setup.poll();
    setup.memory.deflate_request.frames_to_replace = 1500;
    for _ in 0..10_000 {
        if setup.answered_queue.is_none() {
            setup.answered_queue = setup.device.answer();
        }
        setup.step();
        assert!(setup.driver.inflated_frames() >= 2048);
        assert!(setup.driver.inflated_frames() <= 2048 + 512);
    }
    assert_eq!(setup.memory.deflate_request.frames_to_replace, 0);
    setup.poll();
    setup.assert_settled(2048);
}

#[test]
fn an_empty_range_from_the_kernel_stops_the_driver() {
    let mut setup = Setup::new(NO_FEATURES, 512, TestMemory::new(0, 1024));
    setup.memory.gives_no_frame = true;
    let failure = Failure::WrongRange(PfnRange::EMPTY);
    assert_eq!(setup.poll(), Step::Ready(Err(failure)));
    assert_eq!(setup.device.messages, []);
    assert_eq!(setup.driver.status(), Status::Failed(failure));
}

#[test]
fn the_host_sees_the_balloon_grow() {
    let mut setup = Setup::new(NO_FEATURES, 32768, TestMemory::new(0, 33_000));
    let mut actual_values = std::collections::BTreeSet::new();
    while setup.driver.inflated_frames() < 32768 {
        setup.answered_queue = setup.device.answer();
        setup.step();
        actual_values.insert(setup.device.actual_pages);
    }
    assert!(actual_values.len() >= 4, "{actual_values:?}");
    assert!(actual_values.len() <= 6, "{actual_values:?}");
}

#[test]
fn a_driver_of_a_reset_device_starts_with_an_empty_balloon() {
    let mut setup = Setup::new(NO_FEATURES, 512, TestMemory::new(0, 1024));
    setup.poll();
    hotmem_virtio::balloon::Memory::device_reset(&mut setup.memory);
    assert_eq!(setup.memory.count(Frame::Free), 1024);
    setup.device = crate::device::Device::new(300);
    setup.driver = Driver::new(NO_FEATURES, &setup.device.config);
    setup.poll();
    setup.assert_settled(300);
}
