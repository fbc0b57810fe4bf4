//! Tests that the driver stops at protocol violations, and that plugged memory stays usable.

use crate::device::{Device, ERROR, Fault, answer};
use crate::memory::{PreparationFailure, Unit};
use crate::setup::Setup;
use core::time::Duration;
use hotmem_virtio::mem::{
    ConfigFault, ConfigField, Driver, Failure, Features, Obstacle, RawConfig, Reason,
    ResponseError, Status, Step,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Checks that the driver has stopped permanently, and that plugged memory is unchanged.
fn assert_failed(setup: &mut Setup, failure: Failure, plugged_units: u64) {
    let requests = setup.driver.statistics().requests;
    for _ in 0..3 {
        setup.now += Duration::from_secs(60);
        assert_eq!(setup.step(), Step::Ready(Err(failure)));
    }
    assert_eq!(setup.driver.status(), Status::Failed(failure));
    assert_eq!(setup.driver.statistics().requests, requests, "the driver sends a further request");
    assert_eq!(setup.memory.plugged_units(), plugged_units);
}

#[test]
fn an_invalid_configuration_gets_no_driver() {
    let refused = Driver::new(&RawConfig::default(), Features::all()).unwrap_err();
    assert_eq!((refused.field, refused.fault), (ConfigField::BlockSize, ConfigFault::Zero));
}

#[test]
fn a_region_that_overlaps_existing_memory_is_refused() {
    let mut setup = Setup::new(Device::new(2 * MIB, 4 * GIB, GIB));
    setup.device.resize(64 * MIB);
    setup.memory.announce_obstacle = Some(Obstacle::Never(Reason::Other("overlaps boot memory")));
    assert_failed(&mut setup, Failure::Region(Reason::Other("overlaps boot memory")), 0);
}

#[test]
fn the_announcement_of_a_region_is_retried() {
    let mut setup = Setup::new(Device::new(2 * MIB, 4 * GIB, GIB));
    setup.device.resize(64 * MIB);
    setup.memory.announce_obstacle = Some(Obstacle::Later(Reason::Other("no metadata memory")));
    assert!(matches!(setup.run(Duration::from_secs(1)), Step::Pending(_)));
    setup.memory.announce_obstacle = None;
    setup.run(Duration::from_secs(5));
    setup.assert_reached();
}

#[test]
fn changes_of_constant_fields_fail_the_device() {
    type MakeInvalid = fn(&mut RawConfig);
    let cases: [(MakeInvalid, ConfigField); 4] = [
        (|c| c.block_size = MIB, ConfigField::BlockSize),
        (|c| c.addr += 2 * MIB, ConfigField::Addr),
        (|c| c.region_size += 2 * MIB, ConfigField::RegionSize),
        (|c| c.usable_region_size = 2 * GIB, ConfigField::UsableRegionSize),
    ];
    for (spoil, field) in cases {
        let mut setup = Setup::with_64_mib();
        let mut config = setup.device.read_config();
        spoil(&mut config);
        let step = setup.driver.step(setup.now, &config, None, &mut setup.memory);
        let Step::Ready(Err(failure @ Failure::Config(error))) = step else {
            panic!("{field} was not refused: {step:?}");
        };
        assert_eq!(error.field, field);
        assert_failed(&mut setup, failure, 32);
    }
}

#[test]
fn invalid_answers_fail_the_device() {
    let cases: [(&'static [u8], ResponseError); 4] = [
        (&[], ResponseError::Short { used: 0 }),
        (&[0; 9], ResponseError::Short { used: 9 }),
        (&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0], ResponseError::UnknownType(4)),
        (&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0], ResponseError::UnknownType(256)),
    ];
    for (bytes, error) in cases {
        let mut plugging = Setup::with_64_mib();
        plugging.device.resize(128 * MIB);
        plugging.device.faults.push_back(Fault::Bytes(bytes));
        plugging.poll();
        assert_failed(&mut plugging, Failure::Response(error), 32);
        assert!(plugging.memory.units[32..].iter().all(|&u| u == Unit::Absent));
        assert_eq!(plugging.driver.statistics().malformed_answers, 1);

        let mut unplugging = Setup::with_64_mib();
        unplugging.device.resize(32 * MIB);
        unplugging.device.faults.push_back(Fault::Bytes(bytes));
        unplugging.poll();
        assert_failed(&mut unplugging, Failure::Response(error), 16);
        // The state of this memory is unknown, so the driver does not use it.
        assert!(unplugging.memory.units[16..32].iter().all(|&u| u == Unit::PreparedToUnplug));
    }
}

#[test]
fn an_unknown_block_state_fails_the_device() {
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.preplug(7);
    device.faults.push_back(Fault::Bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 3, 0]));
    let mut setup = Setup::new(device);
    setup.poll();
    assert_failed(&mut setup, Failure::Response(ResponseError::UnknownState(3)), 0);
}

#[test]
fn memory_in_use_that_is_not_plugged_fails_the_device() {
    let mut setup = Setup::with_64_mib();
    // The device unplugs a block without a request.
    setup.device.set_plugged(5..6, false);
    let mut answer = None;
    for _ in 0..100 {
        let config = setup.device.read_config();
        let step = setup.driver.step(setup.now, &config, answer.as_deref(), &mut setup.memory);
        match step {
            Step::Ready(Ok(request)) => answer = Some(setup.device.handle(&request.to_bytes()).0),
            Step::Ready(Err(Failure::Lost(range))) => {
                assert!(range.covers(setup.memory.range_of(5)));
                assert_eq!(setup.memory.plugged_units(), 32);
                return;
            }
            _ => answer = None,
        }
    }
    panic!("the driver does not fail");
}

#[test]
fn a_mixed_block_fails_the_device() {
    let mut device = Device::new(2 * MIB, 4 * GIB, GIB);
    device.preplug(7);
    device.default_fault = Some(Fault::Bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 2, 0]));
    let mut setup = Setup::new(device);
    setup.poll();
    let block = setup.memory.range_of(0);
    assert_failed(&mut setup, Failure::MixedBlock(block), 0);
}

#[test]
fn a_unit_that_is_unplugged_half_way_fails_the_device() {
    let mut device = Device::new(MIB, 4 * GIB, GIB);
    device.resize(64 * MIB);
    let mut setup = Setup::new(device);
    setup.poll();
    setup.device.resize(62 * MIB);
    setup.device.faults.push_back(Fault::HalfDone);
    setup.run(Duration::from_secs(1));
    let Status::Failed(failure @ Failure::HalfUnplugged(range)) = setup.driver.status() else {
        panic!("{:?}", setup.driver);
    };
    assert!(setup.memory.all_are(range, Unit::PreparedToUnplug), "the range is in use");
    assert_failed(&mut setup, failure, 31);
}

#[test]
fn a_plugged_size_that_keeps_disagreeing_fails_the_device() {
    let mut setup = Setup::with_64_mib();
    setup.device.claimed_plugged_size = Some(66 * MIB);
    setup.run(Duration::from_secs(10));
    let failure =
        Failure::PluggedSize { claimed: hotmem::Bytes::mib(66), found: hotmem::Bytes::mib(64) };
    assert_failed(&mut setup, failure, 32);
    assert!(setup.driver.statistics().resyncs < 10);
}

#[test]
fn a_late_answer_of_a_failed_device_counts_if_it_is_unambiguous() {
    for (bytes, expected) in [
        (&[0u8; 10][..], Unit::Absent),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0], Unit::Plugged),
        (&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0], Unit::PreparedToUnplug),
    ] {
        let mut setup = Setup::with_64_mib();
        setup.device.resize(32 * MIB);
        let config = setup.device.read_config();
        let (driver, memory) = (&mut setup.driver, &mut setup.memory);
        assert!(matches!(driver.step(setup.now, &config, None, memory), Step::Ready(Ok(_))));
        let broken = RawConfig { block_size: 3, ..config };
        assert!(matches!(driver.step(setup.now, &broken, None, memory), Step::Ready(Err(_))));
        assert!(matches!(
            driver.step(setup.now, &config, Some(bytes), memory),
            Step::Ready(Err(_))
        ));
        assert!(memory.units[16..32].iter().all(|&unit| unit == expected));
    }
    // A PLUG succeeds late. The driver accepts no new memory from a failed device.
    let mut setup = Setup::with_64_mib();
    setup.device.resize(128 * MIB);
    let config = setup.device.read_config();
    let (driver, memory) = (&mut setup.driver, &mut setup.memory);
    assert!(matches!(driver.step(setup.now, &config, None, memory), Step::Ready(Ok(_))));
    let broken = RawConfig { block_size: 3, ..config };
    assert!(matches!(driver.step(setup.now, &broken, None, memory), Step::Ready(Err(_))));
    driver.step(setup.now, &config, Some(&[0; 10]), memory);
    assert!(memory.units[32..].iter().all(|&unit| unit == Unit::Absent));
}

#[test]
fn a_failure_is_permanent() {
    for target in [0, 128 * MIB] {
        let mut setup = Setup::with_64_mib();
        setup.device.resize(target);
        let config = setup.device.read_config();
        let (driver, memory) = (&mut setup.driver, &mut setup.memory);
        assert!(matches!(driver.step(setup.now, &config, None, memory), Step::Ready(Ok(_))));
        let broken = RawConfig { block_size: 3, ..config };
        assert!(matches!(driver.step(setup.now, &broken, None, memory), Step::Ready(Err(_))));
        for bytes in [&answer(ERROR, 0)[..], &[]] {
            let step = driver.step(setup.now, &config, Some(bytes), memory);
            assert!(matches!(step, Step::Ready(Err(Failure::Config(_)))), "{step:?}");
            assert!(matches!(driver.status(), Status::Failed(Failure::Config(_))));
        }
    }
}

#[test]
fn a_failure_cancels_an_unfinished_preparation() {
    let mut setup = Setup::with_64_mib();
    setup.device.resize(0);
    setup.memory.next_failures.push_back(PreparationFailure::Obstacle(Obstacle::Working));
    assert_eq!(setup.step(), Step::Working);
    let broken = RawConfig { block_size: 3, ..setup.device.read_config() };
    setup.driver.step(setup.now, &broken, None, &mut setup.memory);
    assert_eq!(setup.memory.cancelled_preparations, 1);
}

#[test]
fn a_device_that_lost_its_state_before_a_restart_fails() {
    let mut setup = Setup::with_64_mib();
    setup.device.set_plugged(0..32, false);
    let config = setup.device.read_config();
    let mut driver = Driver::new(&config, Features::empty()).unwrap();
    let mut answer = None;
    let failure = loop {
        match driver.step(setup.now, &config, answer.take().as_deref(), &mut setup.memory) {
            Step::Ready(Ok(request)) => answer = Some(setup.device.handle(&request.to_bytes()).0),
            Step::Ready(Err(failure)) => break failure,
            Step::Working => {}
            rest => panic!("{rest:?}"),
        }
    };
    assert!(matches!(failure, Failure::Lost(_)), "{failure}");
    assert_eq!(setup.memory.plugged_units(), 32);
}
