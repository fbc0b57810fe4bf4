//! Tests known deviations of existing devices: no memory is lost, and the driver waits between tries.

use crate::device::{BUSY, Device, ERROR, Fault, NACK, answer};
use crate::memory::Hurdle;
use crate::world::World;
use core::time::Duration;
use hotmem_virtio::mem::{Obstacle, Pending, RawConfig, Reason, RequestKind, Status, Step};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn repeated_refusals_become_pending_and_are_retried_rarely() {
    let cases = [(NACK, Pending::Nack), (BUSY, Pending::Busy), (ERROR, Pending::DeviceError)];
    for ((with, why), target) in cases.iter().flat_map(|c| [(c, 128 * MIB), (c, 0)]) {
        let mut world = World::with_64_mib();
        let before = world.driver.statistics().requests;
        world.device.default_fault = Some(Fault::Refuse(*with));
        world.device.resize(target);
        world.run(Duration::from_millis(50));
        assert_ne!(
            world.driver.status(),
            Status::Pending(*why),
            "the driver reports the reason too early"
        );
        world.run(60 * SECOND);
        assert_eq!(world.driver.status(), Status::Pending(*why));
        let requests = world.driver.statistics().requests - before;
        assert!((10..60).contains(&requests), "{requests} requests in a minute");
        world.device.default_fault = None;
        world.run(10 * SECOND);
        world.assert_reached();
    }
}

#[test]
fn a_new_requested_size_ends_the_wait() {
    let mut world = World::with_64_mib();
    world.device.default_fault = Some(Fault::Refuse(BUSY));
    world.device.resize(0);
    world.run(60 * SECOND);
    world.device.default_fault = None;
    world.device.resize(128 * MIB);
    world.poll();
    world.assert_reached();
}

#[test]
fn continuous_changes_of_the_requested_size_are_followed_rarely() {
    let mut world = World::with_64_mib();
    world.device.default_fault = Some(Fault::Refuse(NACK));
    let before = world.driver.statistics().requests;
    let mut targets = [0, 128 * MIB].into_iter().cycle();
    // Poll a thousand times a second for a minute.
    for _ in 0..60_000 {
        world.device.resize(targets.next().unwrap());
        world.poll();
        world.now += Duration::from_millis(1);
    }
    assert_eq!(world.driver.status(), Status::Pending(Pending::TargetUnsteady));
    let requests = world.driver.statistics().requests - before;
    assert!(requests < 100, "{requests} requests in a minute");
    world.device.default_fault = None;
    world.run(10 * SECOND);
    world.assert_reached();
}

#[test]
fn firecracker_answers_error_to_a_plug_beyond_the_requested_size() {
    let mut world = World::with_64_mib();
    world.device.beyond_requested = ERROR;
    world.device.resize(128 * MIB);
    let config = world.device.read_config();
    // The requested size is lowered between the driver's read and the device's check.
    let step = world.driver.step(world.now, &config, None, &mut world.memory);
    let Step::Ready(Ok(request)) = step else { panic!("{step:?}") };
    world.device.resize(96 * MIB);
    let (answer, _) = world.device.handle(&request.to_bytes());
    assert_eq!(answer[0], ERROR as u8);
    world.late = Some((answer, 0));
    world.run(SECOND);
    world.assert_reached();
    assert_eq!(world.driver.statistics().errors, 1);
}

#[test]
fn firecracker_answers_error_after_it_plugged_or_unplugged() {
    for target in [128 * MIB, 32 * MIB] {
        let mut world = World::with_64_mib();
        world.device.faults.push_back(Fault::ErrorAfterwards);
        world.device.resize(target);
        world.device.requests.clear();
        world.run(SECOND);
        world.assert_reached();
        let kinds: Vec<_> = world.device.requests.iter().map(|r| r.0).collect();
        assert_eq!(kinds[1..], [RequestKind::State], "one query is enough");
    }
}

#[test]
fn a_plug_that_fails_half_way_is_corrected() {
    let mut world = World::with_64_mib();
    world.device.faults.push_back(Fault::Half);
    world.device.resize(128 * MIB);
    world.run(SECOND);
    world.assert_reached();
}

#[test]
fn a_usable_region_of_zero_is_polled_without_an_interrupt() {
    // The state of Firecracker after UNPLUG_ALL.
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.config.requested_size = 64 * MIB;
    let mut world = World::new(device);
    assert!(matches!(world.run(SECOND), Step::Pending(_)));
    assert_eq!(world.driver.status(), Status::Pending(Pending::UsableRegion));
    assert_eq!(world.driver.statistics().requests, 0);
    world.device.config.usable_region_size = 32 * MIB;
    world.run(5 * SECOND);
    assert_eq!(world.driver.plugged().0, 32 * MIB, "as much as fits");
    world.device.config.usable_region_size = GIB;
    world.run(5 * SECOND);
    world.assert_reached();
}

#[test]
fn plugged_memory_above_a_shrunk_usable_region_is_not_lost() {
    let mut world = World::with_64_mib();
    world.device.config.usable_region_size = 32 * MIB;
    world.device.resize(64 * MIB);
    world.device.config.usable_region_size = 32 * MIB;
    world.device.claims_plugged = Some(62 * MIB);
    world.run(Duration::from_millis(5));
    // Only the usable half can be queried. The other half counts as unchanged.
    assert_eq!(world.driver.plugged().0, 64 * MIB);
    world.device.claims_plugged = None;
    world.run(SECOND);
    assert_eq!(world.driver.status(), Status::Reached);
    assert_eq!(world.memory.plugged_units(), 32);
    world.device.config.usable_region_size = GIB;
    world.run(SECOND);
    world.assert_reached();
}

#[test]
fn an_interrupt_without_a_reason_does_nothing() {
    let mut world = World::with_64_mib();
    world.device.requests.clear();
    // Devices of other VMMs than Cloud Hypervisor also interrupt for a resize to the same size.
    world.device.resize(64 * MIB);
    for _ in 0..100 {
        assert_eq!(world.poll(), Step::Idle);
    }
    assert!(world.device.requests.is_empty());
}

#[test]
fn an_answer_may_be_late_and_the_clock_may_jump_meanwhile() {
    let mut world = World::with_64_mib();
    world.device.faults.push_back(Fault::Late(7));
    world.device.resize(128 * MIB);
    assert!(matches!(world.step(), Step::Ready(Ok(_))));
    let deadline = world.now + SECOND;
    assert_eq!(world.step(), Step::Pending(deadline));
    // As after a snapshot and a restore, the clock is set back, and then far ahead.
    world.now = Duration::ZERO;
    assert_eq!(world.step(), Step::Pending(SECOND));
    world.now = 1_000_000 * SECOND;
    assert_eq!(world.step(), Step::Idle);
    assert_eq!(world.driver.status(), Status::Pending(Pending::NoAnswer));
    world.device.resize(96 * MIB);
    assert_eq!(world.step(), Step::Idle, "the device still owns the buffer");
    assert_eq!(world.driver.statistics().overdue, 1);
    world.poll();
    world.assert_reached();
    assert_eq!(world.driver.statistics().stray, 0);
}

#[test]
fn answers_without_a_request_are_counted() {
    let mut world = World::with_64_mib();
    let config = world.device.read_config();
    for bytes in [&[][..], &[0; 10], &[9; 10]] {
        let step = world.driver.step(world.now, &config, Some(bytes), &mut world.memory);
        assert_eq!(step, Step::Idle);
    }
    assert_eq!(world.driver.statistics().stray, 3);
    world.assert_reached();
}

#[test]
fn blocks_that_the_device_plugged_by_itself_are_adopted() {
    let mut world = World::with_64_mib();
    world.device.set(40..44, true);
    world.device.resize(128 * MIB);
    world.run(SECOND);
    world.assert_reached();
    for i in 0..10 {
        world.device.set(100 + i..101 + i, true);
        world.run(SECOND);
        world.assert_reached();
    }
    assert_eq!(world.driver.statistics().resyncs, 11);
}

#[test]
fn refusals_while_synchronising_are_retried() {
    let mut device = Device::new(MIB, 4 * GIB, GIB);
    for block in [0, 1, 2, 9, 20, 21] {
        device.preplug(block);
    }
    device.resize(64 * MIB);
    device.faults.extend([NACK, BUSY, ERROR].map(Fault::Refuse));
    let mut world = World::new(device);
    world.run(Duration::from_millis(20));
    for _ in 0..3 {
        world.device.faults.extend([BUSY, ERROR].map(Fault::Refuse));
        world.device.faults.push_back(Fault::ErrorAfterwards);
        world.run(Duration::from_millis(40));
    }
    world.run(SECOND);
    world.assert_reached();
}

#[test]
fn an_unplug_of_unknown_effect_is_queried_later() {
    let mut world = World::with_64_mib();
    world.device.resize(32 * MIB);
    world.device.faults.push_back(Fault::ErrorAfterwards);
    assert!(matches!(world.step(), Step::Ready(Ok(_))));
    world.device.config.usable_region_size = 32 * MIB;
    world.run(SECOND);
    assert_eq!(world.driver.status(), Status::Pending(Pending::UsableRegion));
    assert_eq!(world.memory.plugged_units(), 16, "the half of unknown state is in use");
    world.device.config.usable_region_size = GIB;
    world.run(SECOND);
    world.assert_reached();
}

#[test]
fn many_changes_are_followed_at_once_if_each_is_reached() {
    let mut world = World::with_64_mib();
    for i in 0..100 {
        world.device.resize([0, 128 * MIB][i % 2]);
        assert_eq!(world.poll(), Step::Idle);
        world.assert_reached();
    }
}

#[test]
fn earlier_failures_do_not_count_after_a_success() {
    let mut world = World::with_64_mib();
    for target in [128 * MIB, 32 * MIB, 256 * MIB] {
        world.device.faults.extend([Fault::Refuse(BUSY); 3]);
        world.device.resize(target);
        let until = world.now + Duration::from_millis(1);
        assert_eq!(world.poll(), Step::Pending(until));
        assert_eq!(world.driver.status(), Status::Resizing);
        world.run(SECOND);
        world.assert_reached();
    }
    // The requested size does not change in this part. It takes three requests, and each is refused
    // five times.
    let mut device = Device::new(2 * MIB, 4 * GIB, 256 * GIB);
    device.resize(256 * GIB);
    for _ in 0..3 {
        device.faults.extend([Fault::Refuse(BUSY); 5]);
        device.faults.push_back(Fault::Late(0));
    }
    let mut world = World::new(device);
    while world.driver.status() != Status::Reached {
        if let Step::Pending(until) = world.step() {
            world.now = world.now.max(until);
        }
        assert!(!matches!(world.driver.status(), Status::Pending(_)));
    }
    assert_eq!(world.driver.statistics().busies, 15);
}

#[test]
fn a_late_refusal_counts_like_other_refusals() {
    let mut world = World::with_64_mib();
    world.device.resize(128 * MIB);
    let config = world.device.read_config();
    let (driver, memory) = (&mut world.driver, &mut world.memory);
    assert!(matches!(driver.step(world.now, &config, None, memory), Step::Ready(Ok(_))));
    world.now += SECOND;
    assert_eq!(driver.step(world.now, &config, None, memory), Step::Idle);
    assert_eq!(driver.status(), Status::Pending(Pending::NoAnswer));
    let until = world.now + Duration::from_millis(1);
    let step = driver.step(world.now, &config, Some(&answer(BUSY, 0)), memory);
    assert_eq!(step, Step::Pending(until));
    assert_eq!(driver.status(), Status::Resizing);
}

#[test]
fn a_disagreement_in_the_middle_of_a_preparation_cancels_it() {
    let mut world = World::with_64_mib();
    world.device.resize(32 * MIB);
    let working = Hurdle::Obstacle(Obstacle::Working);
    world.memory.obstacles.push_back(working);
    assert_eq!(world.step(), Step::Working);
    world.device.set(40..44, true);
    world.device.resize(128 * MIB);
    world.run(SECOND);
    world.assert_reached();
    assert_eq!(world.memory.cancelled, 1);
}

#[test]
fn onlining_is_retried_unless_the_obstacle_is_permanent() {
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.resize(64 * MIB);
    let mut world = World::new(device);
    world.memory.online_hurdles.extend([Obstacle::Later(Reason::Other("later")); 8]);
    world.memory.online_hurdles.push_back(Obstacle::Working);
    world.run(Duration::from_millis(100));
    assert_eq!(world.driver.status(), Status::Pending(Pending::Memory(Reason::Other("later"))));
    assert_eq!((world.memory.online_hurdles.len(), world.memory.offline), (2, true));
    world.run(Duration::from_secs(1));
    world.assert_reached();

    world.memory.online_hurdles.push_back(Obstacle::Never(Reason::Other("never")));
    world.device.resize(128 * MIB);
    world.run(Duration::from_secs(60));
    assert_eq!(world.driver.status(), Status::Pending(Pending::Memory(Reason::Other("never"))));
    assert!(world.memory.offline, "the driver retries the onlining");
    world.device.resize(192 * MIB);
    world.poll();
    world.assert_reached();
}

#[test]
fn memory_plugged_before_a_failure_is_online() {
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.resize(64 * MIB);
    let mut world = World::new(device);
    while !matches!(world.step(), Step::Ready(Ok(_))) {}
    let (answer, _) = world.late.take().unwrap();
    let broken = RawConfig { block_size: 3, ..world.device.read_config() };
    let step = world.driver.step(world.now, &broken, Some(&answer), &mut world.memory);
    assert!(matches!(step, Step::Ready(Err(_))));
    assert_eq!((world.memory.plugged_units(), world.memory.offline), (32, false));
}
