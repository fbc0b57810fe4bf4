//! Tests memory that is plugged when the driver starts: the driver adopts the memory, or unplugs it by
//! one request.

use crate::device::{BUSY, Device, ERROR, Fault, NACK};
use crate::memory::{PreparationFailure, Unit};
use crate::setup::Setup;
use core::time::Duration;
use hotmem::Bytes;
use hotmem_virtio::mem::{
    Driver, Failure, Features, Leftover, Obstacle, Pending, Reason, RequestKind, ResponseError,
    Status, Step,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: Duration = Duration::from_secs(1);

/// Returns a device of 1 GiB. 64 MiB of it, in several runs, are plugged before the driver starts.
fn device(block: u64, requested: u64) -> Device {
    let mut device = Device::new(block, 4 * GIB, GIB);
    for (start, end) in [(0, 16 * MIB), (48 * MIB, 80 * MIB), (512 * MIB, 528 * MIB)] {
        device.set_plugged((start / block) as usize..(end / block) as usize, true);
        device.config.usable_region_size = end;
    }
    device.resize(requested);
    device
}

fn setup(leftover: Leftover, device: Device) -> Setup {
    let mut setup = Setup::new(device);
    setup.driver.set_leftover(leftover);
    setup
}

fn count_unplug_all(setup: &Setup) -> usize {
    setup.device.requests.iter().filter(|r| r.0 == RequestKind::UnplugAll).count()
}

#[test]
fn plugged_memory_is_adopted_by_default() {
    assert_eq!(Leftover::default(), Leftover::Adopt);
    for block in [4 * KIB, 2 * MIB, 16 * MIB] {
        for requested in [0, 32 * MIB, 64 * MIB, GIB] {
            let mut setup = Setup::new(device(block, requested));
            let before = setup.device.blocks.clone();
            setup.run(SECOND);
            setup.assert_reached();
            assert_eq!(count_unplug_all(&setup), 0);
            // The lowest blocks, up to the requested size, were never unplugged.
            let kept_blocks = (requested.min(64 * MIB) / block) as usize;
            let was_plugged = (0..before.len()).filter(|&block| before[block]);
            assert!(was_plugged.take(kept_blocks).all(|block| setup.device.blocks[block]));
            let plugs: u64 = (setup.device.requests.iter())
                .filter(|request| request.0 == RequestKind::Plug)
                .map(|request| request.2)
                .sum();
            assert_eq!(plugs, requested.saturating_sub(64 * MIB));
        }
    }
}

#[test]
fn adoption_causes_no_resync() {
    let mut setup = Setup::new(device(2 * MIB, 64 * MIB));
    setup.run(SECOND);
    setup.assert_reached();
    assert_eq!(setup.driver.statistics().resyncs, 1);
}

#[test]
fn unplug_all_is_sent_as_the_first_request() {
    for block in [4 * KIB, 2 * MIB, 16 * MIB] {
        for requested in [0, 32 * MIB, GIB] {
            let mut setup = setup(Leftover::UnplugAll, device(block, requested));
            setup.run(SECOND);
            setup.assert_reached();
            assert_eq!(setup.device.requests[0].0, RequestKind::UnplugAll);
            assert_eq!(count_unplug_all(&setup), 1);
            assert!(setup.device.requests[1..].iter().all(|r| r.0 == RequestKind::Plug));
            assert_eq!(setup.driver.statistics().resyncs, 0);
        }
    }
}

#[test]
fn a_device_with_nothing_plugged_gets_no_unplug_all() {
    let mut fresh = Device::new(2 * MIB, 4 * GIB, GIB);
    fresh.resize(64 * MIB);
    let mut setup = setup(Leftover::UnplugAll, fresh);
    setup.run(SECOND);
    setup.assert_reached();
    assert_eq!(setup.device.requests.len(), 1);
}

#[test]
fn memory_of_an_earlier_driver_on_this_machine_stays() {
    let mut setup = setup(Leftover::UnplugAll, device(2 * MIB, 64 * MIB));
    setup.run(SECOND);
    setup.assert_reached();
    let before = setup.device.requests.len();
    setup.driver = Driver::new(&setup.device.read_config(), Features::empty()).unwrap();
    setup.driver.set_leftover(Leftover::UnplugAll);
    setup.run(SECOND);
    setup.assert_reached();
    let later = &setup.device.requests[before..];
    assert!(!later.is_empty() && later.iter().all(|r| r.0 == RequestKind::State));
}

#[test]
fn unplug_all_is_retried_while_the_device_is_busy() {
    for refusal in [BUSY, NACK] {
        let mut setup = setup(Leftover::UnplugAll, device(2 * MIB, 128 * MIB));
        setup.device.default_fault = Some(Fault::Refuse(refusal));
        setup.run(SECOND);
        let pending = if refusal == BUSY { Pending::Busy } else { Pending::Nack };
        assert_eq!(setup.driver.status(), Status::Pending(pending));
        let sent = setup.driver.statistics().requests;
        assert!((7..20).contains(&sent), "{sent} requests in a second");
        // The requested size changes, but the driver plugs no block before the request has succeeded.
        setup.device.resize(32 * MIB);
        setup.run(SECOND);
        assert_eq!(setup.memory.plugged_units(), 0);
        setup.device.default_fault = None;
        setup.run(5 * SECOND);
        setup.assert_reached();
        assert_eq!(count_unplug_all(&setup), 1);
    }
}

#[test]
fn the_blocks_are_queried_if_unplug_all_fails() {
    for fault in [Fault::Refuse(ERROR), Fault::ErrorAfterwards, Fault::HalfDone] {
        let mut setup = setup(Leftover::UnplugAll, device(2 * MIB, 128 * MIB));
        setup.device.faults.push_back(fault);
        setup.run(SECOND);
        setup.assert_reached();
        assert_eq!(setup.driver.statistics().errors, 1);
        assert!(count_unplug_all(&setup) <= 1);
    }
}

#[test]
fn an_unplug_all_without_effect_is_noticed() {
    let acked = Fault::Bytes(&[0; 10]);
    let mut once = setup(Leftover::UnplugAll, device(2 * MIB, 128 * MIB));
    once.device.faults.push_back(acked);
    once.run(SECOND);
    once.assert_reached();
    // If the `plugged_size` of a device always exceeds its blocks, the driver fails.
    let mut lying = setup(Leftover::UnplugAll, device(2 * MIB, 0));
    lying.device.claimed_plugged_size = Some(64 * MIB);
    lying.run(10 * SECOND);
    let failure = Failure::PluggedSize { claimed: Bytes::mib(64), found: Bytes::ZERO };
    assert_eq!(lying.driver.status(), Status::Failed(failure));
}

#[test]
fn a_device_that_wrongly_reports_nothing_plugged_is_corrected() {
    for leftover in [Leftover::Adopt, Leftover::UnplugAll] {
        let mut setup = setup(leftover, device(2 * MIB, 128 * MIB));
        setup.device.claimed_plugged_size = Some(0);
        setup.poll();
        // By the specification, a PLUG of plugged blocks is an error. After the error, the driver
        // queries the blocks.
        setup.device.claimed_plugged_size = None;
        setup.run(5 * SECOND);
        setup.assert_reached();
    }
}

#[test]
fn an_invalid_answer_to_unplug_all_fails_the_device() {
    let mut setup = setup(Leftover::UnplugAll, device(2 * MIB, 128 * MIB));
    setup.device.faults.push_back(Fault::Bytes(&[0; 9]));
    setup.poll();
    let failure = Failure::Response(ResponseError::Short { used: 9 });
    assert_eq!(setup.poll(), Step::Ready(Err(failure)));
    assert_eq!(setup.memory.plugged_units(), 0);
}

#[test]
fn a_late_answer_to_unplug_all_counts() {
    let mut setup = setup(Leftover::UnplugAll, device(2 * MIB, 128 * MIB));
    setup.device.faults.push_back(Fault::LateAnswer(50));
    assert!(matches!(setup.step(), Step::Working));
    assert!(matches!(setup.step(), Step::Ready(Ok(_))));
    assert_eq!(setup.step(), Step::Pending(setup.now + SECOND));
    setup.now += 5 * SECOND;
    assert_eq!(setup.step(), Step::Idle);
    assert_eq!(setup.driver.status(), Status::Pending(Pending::NoAnswer));
    assert_eq!(setup.memory.plugged_units(), 0);
    setup.run(SECOND);
    setup.assert_reached();
}

#[test]
fn adoption_is_retried_and_memory_that_can_never_be_adopted_is_unplugged() {
    for (obstacle, adopted) in [
        (Obstacle::Later(Reason::Other("later")), true),
        (Obstacle::Never(Reason::Other("never")), false),
    ] {
        let mut setup = Setup::new(device(2 * MIB, 64 * MIB));
        setup.memory.next_failures.push_back(PreparationFailure::Obstacle(obstacle));
        setup.run(5 * SECOND);
        setup.assert_reached();
        let unplugged = setup.device.requests.iter().any(|r| r.0 == RequestKind::Unplug);
        assert_eq!(unplugged, !adopted);
    }
}

#[test]
fn blocks_that_do_not_fill_a_unit_are_unplugged() {
    let mut torn = Device::new(64 * KIB, 4 * GIB + 64 * KIB, 64 * MIB);
    for block in (0..700).step_by(3) {
        torn.preplug(block);
    }
    for leftover in [Leftover::Adopt, Leftover::UnplugAll] {
        let mut device = Device::new(64 * KIB, 4 * GIB + 64 * KIB, 64 * MIB);
        device.config = torn.config;
        device.blocks.clone_from(&torn.blocks);
        device.resize(16 * MIB);
        let mut setup = setup(leftover, device);
        setup.run(SECOND);
        setup.assert_reached();
    }
}

#[test]
fn memory_is_used_only_after_the_device_has_answered() {
    let mut setup = setup(Leftover::UnplugAll, device(2 * MIB, GIB));
    setup.device.faults.push_back(Fault::LateAnswer(1000));
    for _ in 0..500 {
        setup.step();
        assert!(setup.memory.units.iter().all(|&unit| unit == Unit::Absent));
    }
}
