//! Tests known deviations of existing devices: no memory is lost, and the driver waits between tries.

use crate::device::{BUSY, Device, ERROR, Fault, NACK, answer};
use crate::memory::PreparationFailure;
use crate::setup::Setup;
use core::time::Duration;
use hotmem_virtio::mem::{Obstacle, Pending, RawConfig, Reason, RequestKind, Status, Step};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn repeated_refusals_become_pending_and_are_retried_rarely() {
    let cases = [(NACK, Pending::Nack), (BUSY, Pending::Busy), (ERROR, Pending::DeviceError)];
    for ((response, pending), target) in cases.iter().flat_map(|c| [(c, 128 * MIB), (c, 0)]) {
        let mut setup = Setup::with_64_mib();
        let before = setup.driver.statistics().requests;
        setup.device.default_fault = Some(Fault::Refuse(*response));
        setup.device.resize(target);
        setup.run(Duration::from_millis(50));
        assert_ne!(
            setup.driver.status(),
            Status::Pending(*pending),
            "the driver reports the reason too early"
        );
        setup.run(60 * SECOND);
        assert_eq!(setup.driver.status(), Status::Pending(*pending));
        let requests = setup.driver.statistics().requests - before;
        assert!((10..60).contains(&requests), "{requests} requests in a minute");
        setup.device.default_fault = None;
        setup.run(10 * SECOND);
        setup.assert_reached();
    }
}

#[test]
fn a_new_requested_size_ends_the_wait() {
    let mut setup = Setup::with_64_mib();
    setup.device.default_fault = Some(Fault::Refuse(BUSY));
    setup.device.resize(0);
    setup.run(60 * SECOND);
    setup.device.default_fault = None;
    setup.device.resize(128 * MIB);
    setup.poll();
    setup.assert_reached();
}

#[test]
fn continuous_changes_of_the_requested_size_are_followed_rarely() {
    let mut setup = Setup::with_64_mib();
    setup.device.default_fault = Some(Fault::Refuse(NACK));
    let before = setup.driver.statistics().requests;
    let mut targets = [0, 128 * MIB].into_iter().cycle();
    // Poll a thousand times a second for a minute.
    for _ in 0..60_000 {
        setup.device.resize(targets.next().unwrap());
        setup.poll();
        setup.now += Duration::from_millis(1);
    }
    assert_eq!(setup.driver.status(), Status::Pending(Pending::TargetUnsteady));
    let requests = setup.driver.statistics().requests - before;
    assert!(requests < 100, "{requests} requests in a minute");
    setup.device.default_fault = None;
    setup.run(10 * SECOND);
    setup.assert_reached();
}

#[test]
fn firecracker_answers_error_to_a_plug_beyond_the_requested_size() {
    let mut setup = Setup::with_64_mib();
    setup.device.answer_beyond_requested = ERROR;
    setup.device.resize(128 * MIB);
    let config = setup.device.read_config();
    // The requested size is lowered between the driver's read and the device's check.
    let step = setup.driver.step(setup.now, &config, None, &mut setup.memory);
    let Step::Ready(Ok(request)) = step else { panic!("{step:?}") };
    setup.device.resize(96 * MIB);
    let (answer, _) = setup.device.handle(&request.to_bytes());
    assert_eq!(answer[0], ERROR as u8);
    setup.outstanding_answer = Some((answer, 0));
    setup.run(SECOND);
    setup.assert_reached();
    assert_eq!(setup.driver.statistics().errors, 1);
}

#[test]
fn firecracker_answers_error_after_it_plugged_or_unplugged() {
    for target in [128 * MIB, 32 * MIB] {
        let mut setup = Setup::with_64_mib();
        setup.device.faults.push_back(Fault::ErrorAfterwards);
        setup.device.resize(target);
        setup.device.requests.clear();
        setup.run(SECOND);
        setup.assert_reached();
        let kinds: Vec<_> = setup.device.requests.iter().map(|r| r.0).collect();
        assert_eq!(kinds[1..], [RequestKind::State], "one query is enough");
    }
}

#[test]
fn a_request_that_fails_half_way_is_corrected() {
    for target in [128 * MIB, 32 * MIB, 0, 62 * MIB, 60 * MIB] {
        let mut setup = Setup::with_64_mib();
        setup.device.faults.push_back(Fault::HalfDone);
        setup.device.resize(target);
        setup.run(SECOND);
        setup.assert_reached();
        assert_eq!(setup.driver.statistics().resyncs, u64::from(target > 64 * MIB));
    }
}

#[test]
fn borders_that_no_request_may_cross_are_found() {
    for (slot, block) in [(2 * GIB, 2 * MIB), (128 * MIB, 2 * MIB), (2 * GIB, 64 << 10)] {
        let mut device = Device::new(block, 4 * GIB, 8 * GIB);
        device.slot_bytes = Some(slot);
        let mut setup = Setup::new(device);
        setup.poll();
        for target in [2 * GIB + 4 * MIB, 8 * GIB, 2 * GIB - 6 * MIB, 0] {
            let errors = setup.driver.statistics().errors;
            setup.device.resize(target);
            setup.run(Duration::from_secs(10));
            setup.assert_reached();
            let borders = 8 * GIB / slot;
            let errors = setup.driver.statistics().errors - errors;
            assert!(errors <= 32 * borders, "{errors} errors, {borders} borders");
        }
    }
}

#[test]
fn memory_across_borders_is_adopted_or_discarded_at_the_start() {
    for target in [8 * GIB, 2 * GIB + 4 * MIB, 0] {
        let mut device = Device::new(2 * MIB, 4 * GIB, 8 * GIB);
        device.slot_bytes = Some(2 * GIB);
        device.resize(8 * GIB);
        device.set_plugged(0..device.blocks.len(), true);
        device.resize(target);
        let mut setup = Setup::new(device);
        setup.run(Duration::from_secs(10));
        setup.assert_reached();
    }
}

#[test]
fn a_usable_region_of_zero_is_polled_without_an_interrupt() {
    // The state of Firecracker after UNPLUG_ALL.
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.config.requested_size = 64 * MIB;
    let mut setup = Setup::new(device);
    assert!(matches!(setup.run(SECOND), Step::Pending(_)));
    assert_eq!(setup.driver.status(), Status::Pending(Pending::UsableRegion));
    assert_eq!(setup.driver.statistics().requests, 0);
    setup.device.config.usable_region_size = 32 * MIB;
    setup.run(5 * SECOND);
    assert_eq!(setup.driver.plugged().0, 32 * MIB, "as much as fits");
    setup.device.config.usable_region_size = GIB;
    setup.run(5 * SECOND);
    setup.assert_reached();
}

#[test]
fn plugged_memory_above_a_shrunk_usable_region_is_not_lost() {
    let mut setup = Setup::with_64_mib();
    setup.device.config.usable_region_size = 32 * MIB;
    setup.device.resize(64 * MIB);
    setup.device.config.usable_region_size = 32 * MIB;
    setup.device.claimed_plugged_size = Some(62 * MIB);
    setup.run(Duration::from_millis(5));
    // Only the usable half can be queried. The other half counts as unchanged.
    assert_eq!(setup.driver.plugged().0, 64 * MIB);
    setup.device.claimed_plugged_size = None;
    setup.run(SECOND);
    assert_eq!(setup.driver.status(), Status::Reached);
    assert_eq!(setup.memory.plugged_units(), 32);
    setup.device.config.usable_region_size = GIB;
    setup.run(SECOND);
    setup.assert_reached();
}

#[test]
fn an_interrupt_without_a_reason_does_nothing() {
    let mut setup = Setup::with_64_mib();
    setup.device.requests.clear();
    // Devices of other VMMs than Cloud Hypervisor also interrupt for a resize to the same size.
    setup.device.resize(64 * MIB);
    for _ in 0..100 {
        assert_eq!(setup.poll(), Step::Idle);
    }
    assert!(setup.device.requests.is_empty());
}

#[test]
fn an_answer_may_be_late_and_the_clock_may_jump_meanwhile() {
    let mut setup = Setup::with_64_mib();
    setup.device.faults.push_back(Fault::LateAnswer(7));
    setup.device.resize(128 * MIB);
    assert!(matches!(setup.step(), Step::Ready(Ok(_))));
    let deadline = setup.now + SECOND;
    assert_eq!(setup.step(), Step::Pending(deadline));
    // As after a snapshot and a restore, the clock is set back, and then far ahead.
    setup.now = Duration::ZERO;
    assert_eq!(setup.step(), Step::Pending(SECOND));
    setup.now = 1_000_000 * SECOND;
    assert_eq!(setup.step(), Step::Idle);
    assert_eq!(setup.driver.status(), Status::Pending(Pending::NoAnswer));
    setup.device.resize(96 * MIB);
    assert_eq!(setup.step(), Step::Idle, "the device still owns the buffer");
    assert_eq!(setup.driver.statistics().overdue_requests, 1);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.driver.statistics().stray_answers, 0);
}

#[test]
fn answers_without_a_request_are_counted() {
    let mut setup = Setup::with_64_mib();
    let config = setup.device.read_config();
    for bytes in [&[][..], &[0; 10], &[9; 10]] {
        let step = setup.driver.step(setup.now, &config, Some(bytes), &mut setup.memory);
        assert_eq!(step, Step::Idle);
    }
    assert_eq!(setup.driver.statistics().stray_answers, 3);
    setup.assert_reached();
}

#[test]
fn blocks_that_the_device_plugged_by_itself_are_adopted() {
    let mut setup = Setup::with_64_mib();
    setup.device.set_plugged(40..44, true);
    setup.device.resize(128 * MIB);
    setup.run(SECOND);
    setup.assert_reached();
    for i in 0..10 {
        setup.device.set_plugged(100 + i..101 + i, true);
        setup.run(SECOND);
        setup.assert_reached();
    }
    assert_eq!(setup.driver.statistics().resyncs, 11);
}

#[test]
fn refusals_while_synchronising_are_retried() {
    let mut device = Device::new(MIB, 4 * GIB, GIB);
    for block in [0, 1, 2, 9, 20, 21] {
        device.preplug(block);
    }
    device.resize(64 * MIB);
    device.faults.extend([NACK, BUSY, ERROR].map(Fault::Refuse));
    let mut setup = Setup::new(device);
    setup.run(Duration::from_millis(20));
    for _ in 0..3 {
        setup.device.faults.extend([BUSY, ERROR].map(Fault::Refuse));
        setup.device.faults.push_back(Fault::ErrorAfterwards);
        setup.run(Duration::from_millis(40));
    }
    setup.run(SECOND);
    setup.assert_reached();
}

#[test]
fn an_unplug_of_unknown_effect_is_queried_later() {
    let mut setup = Setup::with_64_mib();
    setup.device.resize(32 * MIB);
    setup.device.faults.push_back(Fault::ErrorAfterwards);
    assert!(matches!(setup.step(), Step::Ready(Ok(_))));
    setup.device.config.usable_region_size = 32 * MIB;
    setup.run(SECOND);
    assert_eq!(setup.driver.status(), Status::Pending(Pending::UsableRegion));
    assert_eq!(setup.memory.plugged_units(), 16, "the half of unknown state is in use");
    setup.device.config.usable_region_size = GIB;
    setup.run(SECOND);
    setup.assert_reached();
}

#[test]
fn many_changes_are_followed_at_once_if_each_is_reached() {
    let mut setup = Setup::with_64_mib();
    for i in 0..100 {
        setup.device.resize([0, 128 * MIB][i % 2]);
        assert_eq!(setup.poll(), Step::Idle);
        setup.assert_reached();
    }
}

#[test]
fn earlier_failures_do_not_count_after_a_success() {
    let mut setup = Setup::with_64_mib();
    for target in [128 * MIB, 32 * MIB, 256 * MIB] {
        setup.device.faults.extend([Fault::Refuse(BUSY); 3]);
        setup.device.resize(target);
        let until = setup.now + Duration::from_millis(1);
        assert_eq!(setup.poll(), Step::Pending(until));
        assert_eq!(setup.driver.status(), Status::Resizing);
        setup.run(SECOND);
        setup.assert_reached();
    }
    // The requested size does not change in this part. It takes three requests, and each is refused
    // five times.
    let mut device = Device::new(2 * MIB, 4 * GIB, 256 * GIB);
    device.resize(256 * GIB);
    for _ in 0..3 {
        device.faults.extend([Fault::Refuse(BUSY); 5]);
        device.faults.push_back(Fault::LateAnswer(0));
    }
    let mut setup = Setup::new(device);
    while setup.driver.status() != Status::Reached {
        if let Step::Pending(until) = setup.step() {
            setup.now = setup.now.max(until);
        }
        assert!(!matches!(setup.driver.status(), Status::Pending(_)));
    }
    assert_eq!(setup.driver.statistics().busy_answers, 15);
}

#[test]
fn a_device_is_not_late_because_a_step_took_long_to_prepare_memory() {
    let mut setup = Setup::with_64_mib();
    setup.device.faults.push_back(Fault::LateAnswer(2));
    setup.device.resize(0);
    assert!(matches!(setup.step(), Step::Ready(Ok(_))));
    // The step has migrated memory for a long time before it returned the request.
    setup.now += 10 * SECOND;
    assert_eq!(setup.step(), Step::Pending(setup.now + SECOND));
    assert_eq!(setup.driver.status(), Status::Resizing);
    setup.poll();
    setup.assert_reached();
    assert_eq!(setup.driver.statistics().overdue_requests, 0);
}

#[test]
fn a_late_refusal_counts_like_other_refusals() {
    let mut setup = Setup::with_64_mib();
    setup.device.resize(128 * MIB);
    let config = setup.device.read_config();
    let (driver, memory) = (&mut setup.driver, &mut setup.memory);
    assert!(matches!(driver.step(setup.now, &config, None, memory), Step::Ready(Ok(_))));
    let deadline = setup.now + SECOND;
    assert_eq!(driver.step(setup.now, &config, None, memory), Step::Pending(deadline));
    setup.now = deadline;
    assert_eq!(driver.step(setup.now, &config, None, memory), Step::Idle);
    assert_eq!(driver.status(), Status::Pending(Pending::NoAnswer));
    let until = setup.now + Duration::from_millis(1);
    let step = driver.step(setup.now, &config, Some(&answer(BUSY, 0)), memory);
    assert_eq!(step, Step::Pending(until));
    assert_eq!(driver.status(), Status::Resizing);
}

#[test]
fn a_disagreement_in_the_middle_of_a_preparation_cancels_it() {
    let mut setup = Setup::with_64_mib();
    setup.device.resize(32 * MIB);
    let working = PreparationFailure::Obstacle(Obstacle::Working);
    setup.memory.next_failures.push_back(working);
    assert_eq!(setup.step(), Step::Working);
    setup.device.set_plugged(40..44, true);
    setup.device.resize(128 * MIB);
    setup.run(SECOND);
    setup.assert_reached();
    assert_eq!(setup.memory.cancelled_preparations, 1);
}

#[test]
fn onlining_is_retried_unless_the_obstacle_is_permanent() {
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.resize(64 * MIB);
    let mut setup = Setup::new(device);
    setup.memory.online_obstacles.extend([Obstacle::Later(Reason::Other("later")); 8]);
    setup.memory.online_obstacles.push_back(Obstacle::Working);
    setup.run(Duration::from_millis(100));
    assert_eq!(setup.driver.status(), Status::Pending(Pending::Memory(Reason::Other("later"))));
    assert_eq!((setup.memory.online_obstacles.len(), setup.memory.has_offline_memory), (2, true));
    setup.run(Duration::from_secs(1));
    setup.assert_reached();

    setup.memory.online_obstacles.push_back(Obstacle::Never(Reason::Other("never")));
    setup.device.resize(128 * MIB);
    setup.run(Duration::from_secs(60));
    assert_eq!(setup.driver.status(), Status::Pending(Pending::Memory(Reason::Other("never"))));
    assert!(setup.memory.has_offline_memory, "the driver retries the onlining");
    setup.device.resize(192 * MIB);
    setup.poll();
    setup.assert_reached();
}

#[test]
fn memory_plugged_before_a_failure_is_online() {
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.resize(64 * MIB);
    let mut setup = Setup::new(device);
    while !matches!(setup.step(), Step::Ready(Ok(_))) {}
    let (answer, _) = setup.outstanding_answer.take().unwrap();
    let broken = RawConfig { block_size: 3, ..setup.device.read_config() };
    let step = setup.driver.step(setup.now, &broken, Some(&answer), &mut setup.memory);
    assert!(matches!(step, Step::Ready(Err(_))));
    assert_eq!((setup.memory.plugged_units(), setup.memory.has_offline_memory), (32, false));
}
