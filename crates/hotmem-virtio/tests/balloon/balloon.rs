//! Tests inflating and deflating.

use crate::memory::{Frame, TestMemory};
use crate::world::{MS, World};
use core::time::Duration;
use hotmem::{Pfn, PfnRange};
use hotmem_virtio::balloon::{
    Action, DeflateRequest, Driver, Failure, Features, Message, Obstacle, Pending, Reason, Status,
    Step,
};

const NONE: Features = Features::empty();

#[test]
fn every_size_is_reached_by_requests_of_256_frames() {
    let mut world = World::new(NONE, 0, TestMemory::new(0x1000, 4096));
    world.poll();
    world.assert_settled(0);
    for target in [1, 0, 256, 257, 4096, 512, 3000, 0] {
        world.device.config.num_pages = target;
        world.poll();
        world.assert_settled(target);
    }
    let most = world.device.sent.iter().map(|message| match message {
        Message::Inflate(range) | Message::Deflate(range) => range.frames(),
        other => panic!("{other:?}"),
    });
    assert_eq!(most.max(), Some(256));
    assert_eq!(world.memory.count(Frame::Free), 4096);
}

#[test]
fn actual_is_written_for_a_device_that_was_used_before() {
    let mut world = World::new(NONE, 0, TestMemory::new(0, 16));
    assert_eq!(world.device.actual, 99);
    assert_eq!(world.step(), Step::Ready(Ok(Action::SetActual(0))));
    assert_eq!(world.step(), Step::Idle);
}

#[test]
fn the_balloon_inflates_by_short_ranges() {
    let mut memory = TestMemory::new(7, 1000);
    memory.max_run = 3;
    let mut world = World::new(NONE, 999, memory);
    world.poll();
    world.assert_settled(999);
}

#[test]
fn frames_change_their_owner_only_after_the_device_has_answered() {
    for (from, to) in [(0, 512), (512, 0)] {
        let mut world = World::new(NONE, from, TestMemory::new(0, 1024));
        world.poll();
        world.device.config.num_pages = to;
        let before = world.memory.count(Frame::Free);
        while world.device.waiting.is_empty() {
            world.step();
        }
        for _ in 0..5 {
            world.step();
            assert_eq!(world.device.waiting.len(), 1, "the driver sends a second request");
            assert!(world.memory.count(Frame::Free) <= before);
            assert_eq!(
                world.driver.inflated_frames(),
                u64::from(from),
                "unchanged until the device has answered"
            );
        }
        world.poll();
        world.assert_settled(to);
    }
}

#[test]
fn the_balloon_leaves_the_minimum_of_free_frames_for_any_request() {
    let mut memory = TestMemory::new(0, 4096);
    memory.min_free = 1000;
    let mut world = World::new(NONE, u32::MAX, memory);
    let Step::Pending(until) = world.poll() else { panic!("{:?}", world.driver) };
    assert_eq!(until, world.now + MS, "the driver does not retry");
    assert_eq!(world.memory.count(Frame::Free), 1000);
    assert_eq!(world.device.actual, 3096);
    let pending = Pending::Memory(Reason::Other("the kernel keeps the rest"));
    assert_eq!(world.driver.status(), Status::Pending(pending));
    // The intervals between tries grow.
    let before = world.device.sent.len();
    world.run(Duration::from_secs(60));
    assert_eq!(world.device.sent.len(), before);
    world.device.config.num_pages = 5;
    world.poll();
    world.assert_settled(5);
}

#[test]
fn memory_above_16_tib_is_refused_and_not_truncated() {
    let limit = Message::FRAME_LIMIT;
    let mut world = World::new(NONE, 512, TestMemory::new(limit - 256, 1024));
    world.memory.max_run = 256;
    world.poll();
    assert_eq!(world.driver.inflated_frames(), 256, "the part below the limit is not inflated");
    assert_eq!(world.memory.count(Frame::Free), 768, "the part above the limit is not freed");
    assert_eq!(world.device.balloon.last(), Some(&u32::MAX));
    let pending = Pending::Memory(Reason::Other("only memory above 16 TiB is left"));
    assert_eq!(world.driver.status(), Status::Pending(pending));
    world.run(Duration::from_secs(60));
    assert_eq!(world.device.sent.len(), 1);
}

#[test]
fn a_range_across_16_tib_is_refused_as_a_whole() {
    let mut world = World::new(NONE, 512, TestMemory::new(Message::FRAME_LIMIT - 256, 1024));
    world.poll();
    assert_eq!(world.driver.inflated_frames(), 0);
    assert_eq!(world.memory.count(Frame::Free), 1024);
}

#[test]
fn temporary_obstacles_are_retried() {
    let mut world = World::new(NONE, 512, TestMemory::new(0, 1024));
    world.memory.obstacles.extend([
        Obstacle::Working,
        Obstacle::Later(Reason::Other("busy")),
        Obstacle::Later(Reason::Other("busy")),
        Obstacle::Working,
    ]);
    assert_eq!(world.poll(), Step::Pending(world.now + MS));
    assert_eq!(world.driver.status(), Status::Pending(Pending::Memory(Reason::Other("busy"))));
    world.run(Duration::from_secs(1));
    world.assert_settled(512);
}

#[test]
fn a_permanent_obstacle_lasts_until_the_target_changes() {
    let mut world = World::new(NONE, 512, TestMemory::new(0, 1024));
    world.memory.obstacles.push_back(Obstacle::Never(Reason::Other("no")));
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.driver.status(), Status::Pending(Pending::Memory(Reason::Other("no"))));
    world.device.config.num_pages = 511;
    world.poll();
    world.assert_settled(511);
}

#[test]
fn a_target_that_keeps_changing_is_followed_at_a_limited_rate() {
    let mut world = World::new(NONE, 0, TestMemory::new(0, 4096));
    for n in 0..20 {
        world.device.config.num_pages = 4000 + n;
        world.step();
    }
    assert_eq!(world.driver.status(), Status::Pending(Pending::TargetUnsteady));
    world.device.config.num_pages = 100;
    world.run(Duration::from_secs(10));
    world.assert_settled(100);
}

#[test]
fn a_guest_without_memory_deflates_if_that_is_negotiated() {
    for (features, left) in [(Features::DEFLATE_ON_OOM, 2048 - 600), (NONE, 2048)] {
        let mut world = World::new(features, 2048, TestMemory::new(0, 4096));
        world.poll();
        world.memory.min_free = 4096;
        world.memory.deflate_request.needed = 600;
        world.run(Duration::from_secs(1));
        assert_eq!(world.driver.inflated_frames(), left);
        assert_eq!(world.device.balloon.len() as u64, left);
        // The driver inflates again later.
        world.memory.min_free = 0;
        world.memory.deflate_request = DeflateRequest::default();
        world.run(Duration::from_secs(20));
        world.assert_settled(2048);
    }
}

#[test]
fn frames_that_must_leave_are_replaced_and_the_balloon_is_never_too_small() {
    let mut world = World::new(NONE, 2048, TestMemory::new(0, 4096));
    world.poll();
    world.memory.deflate_request.frames_to_replace = 1500;
    for _ in 0..10_000 {
        if world.used.is_none() {
            world.used = world.device.answer();
        }
        world.step();
        assert!(world.driver.inflated_frames() >= 2048);
        assert!(world.driver.inflated_frames() <= 2048 + 512);
    }
    assert_eq!(world.memory.deflate_request.frames_to_replace, 0);
    world.poll();
    world.assert_settled(2048);
}

#[test]
fn a_range_that_does_not_match_the_request_stops_the_driver() {
    let range = |start, len| PfnRange::with_len(Pfn::new(start).unwrap(), len).unwrap();
    for bad_range in [range(0, 513), PfnRange::EMPTY] {
        let mut world = World::new(NONE, 512, TestMemory::new(0, 1024));
        world.memory.bad_range = Some(bad_range);
        assert_eq!(world.poll(), Step::Ready(Err(Failure::WrongRange(bad_range))));
        assert_eq!(world.device.sent, []);
        assert_eq!(world.driver.status(), Status::Failed(Failure::WrongRange(bad_range)));
    }
}

#[test]
fn the_host_sees_the_balloon_grow() {
    let mut world = World::new(NONE, 32768, TestMemory::new(0, 33_000));
    let mut seen = std::collections::BTreeSet::new();
    while world.driver.inflated_frames() < 32768 {
        world.used = world.device.answer();
        world.step();
        seen.insert(world.device.actual);
    }
    assert!(seen.len() >= 4, "{seen:?}");
    assert!(seen.len() <= 6, "{seen:?}");
}

#[test]
fn a_driver_of_a_reset_device_starts_with_an_empty_balloon() {
    let mut world = World::new(NONE, 512, TestMemory::new(0, 1024));
    world.poll();
    hotmem_virtio::balloon::Memory::device_reset(&mut world.memory);
    assert_eq!(world.memory.count(Frame::Free), 1024);
    world.device = crate::device::Device::new(300);
    world.driver = Driver::new(NONE, &world.device.config);
    world.poll();
    world.assert_settled(300);
}
