//! Tests the balloon's driver on a transport, including the bytes in the queues.

// Tests run on 64-bit machines.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)]
#[path = "../balloon/device.rs"]
mod device;
#[allow(dead_code)]
#[path = "../balloon/memory.rs"]
mod memory;
#[allow(dead_code)]
#[path = "../common/mock_transport.rs"]
mod mock_transport;
mod numbering;
mod restarts;
#[allow(dead_code)]
#[path = "../queue/shared.rs"]
mod shared;
mod transport;
#[allow(dead_code)]
#[path = "../common/vmm.rs"]
mod vmm;

use core::time::Duration;
use device::DONE;
use hotmem_virtio::HandshakeError;
use hotmem_virtio::balloon::{
    BalloonOptions, Device, Driver, Failure, Features, InitError, MemoryStatistics, Poison,
    Progress, Queue, QueueMissing, QueueNumbering, ResetCause, Statistic, Status,
};
use hotmem_virtio::queue::{QueueError, QueueFeatures};
use memory::{Frame, TestMemory};
use mock_transport::Violation;
use shared::SharedPage;
use transport::{Host, MockTransport};
use virtio_drivers::transport::{DeviceStatus, DeviceType};
use vmm::Vmm;

const NOW: Duration = Duration::from_secs(1);
const BUDGET: u32 = 10_000;
const FRAMES: usize = 4096;

const NO_ANSWER: ResetCause = ResetCause::NoAnswer(Queue::Reports);

const ALL_FEATURES: BalloonOptions = BalloonOptions {
    features: Features::all(),
    poison: Poison::None,
    answer_timeout: Driver::DEFAULT_ANSWER_TIMEOUT,
};

fn start(
    host: &Host,
    options: BalloonOptions,
) -> Result<(Device<MockTransport>, TestMemory), InitError> {
    let device = Device::new(host.transport(), host.page().dma(0), options)?;
    let mut memory = TestMemory::new(0x1000, FRAMES);
    memory.report_from = Duration::ZERO;
    Ok((device, memory))
}

fn feature_sets() -> impl Iterator<Item = Features> {
    let of_queues = (0..64).map(|bits| Features::from_bits_truncate(bits) | Features::VERSION_1);
    of_queues.flat_map(|features| [features, features | Features::DEVICE_INIT_ON_INFLATE])
}

#[test]
fn all_combinations_of_features_work_with_both_numberings_of_queues() {
    for offered in feature_sets() {
        for numbering in [QueueNumbering::Dense, QueueNumbering::Listed] {
            for poison in [Poison::None, Poison::Filled(0), Poison::Filled(0xaaaa_aaaa)] {
                check_features(&transport::host(offered, numbering), poison);
            }
        }
    }
}

#[test]
fn used_lengths_of_buffers_that_were_read_are_ignored() {
    // QEMU before 7.0 returns the length that it has read, and 1 on the queue of hints.
    for length in [1, 4] {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().violation = Some(Violation::Length(length));
        check_features(&host, Poison::None);
    }
}

#[test]
fn all_services_work_on_every_vmm() {
    for vmm in Vmm::each() {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().vmm = vmm;
        check_features(&host, Poison::None);
    }
}

#[test]
fn all_services_work_with_all_features_of_queues() {
    for queue_features in mock_transport::queue_feature_sets() {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().offered_queue_features = queue_features;
        check_features(&host, Poison::None);
        assert_eq!(host.borrow().queue_features, QueueFeatures::of_device(queue_features));
    }
}

/// Checks that all negotiated services work, and that the driver uses no other queue.
fn check_features(host: &Host, poison: Poison) {
    let offered = host.borrow().offered_features;
    host.borrow_mut().device.config.num_pages = 700;
    let options = BalloonOptions { poison, ..ALL_FEATURES };
    let (mut device, mut memory) = start(host, options).unwrap();
    let features = device.driver().features();
    assert!(offered.contains(features));
    assert_eq!(host.borrow().negotiated_features, features);
    let expected = features.contains(Features::PAGE_POISON).then_some(poison.value());
    assert_eq!(
        host.borrow().poison_val,
        expected,
        "the poison value is not written before DRIVER_OK"
    );

    assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle, "{offered:?}");
    assert_eq!(device.driver().status(), Status::Settled);
    assert_eq!(host.borrow().device.balloon.len(), 700);
    assert_eq!(host.borrow().device.actual_pages, 700);
    check_initialised(host, &memory);
    let has_reports = features.contains(Features::PAGE_REPORTING);
    let free = if has_reports { Frame::Reported } else { Frame::Free };
    assert_eq!(memory.count(free), FRAMES - 700);

    host.borrow_mut().device.config.num_pages = 0;
    host.borrow_mut().device.hides_commands = true;
    host.borrow_mut().device.request_hints(5);
    memory.report_from = Duration::MAX;
    device.poll(NOW, BUDGET, &mut memory);
    let has_hints = features.contains(Features::FREE_PAGE_HINT);
    device.poll(NOW, BUDGET, &mut memory);
    assert!(!has_hints || memory.count(Frame::Free) == 0);
    host.borrow_mut().device.request_hints(DONE);
    assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
    assert_eq!(memory.count(Frame::Hinted), 0);
    assert_eq!(host.borrow().device.actual_pages, 0);
    assert_eq!(device.driver().counters().statistics > 0, features.contains(Features::STATS_VQ));
}

/// Checks that the memory manager has learned of each frame in the balloon what the device says.
fn check_initialised(host: &Host, memory: &TestMemory) {
    let host = host.borrow();
    if host.violation.is_some() {
        return;
    }
    let has_bitmaps = host.negotiated_features.contains(Features::DEVICE_INIT_ON_INFLATE);
    let numbers = host.device.balloon.iter().map(|&number| u64::from(number));
    let expected = numbers.filter(|number| has_bitmaps && number % 3 != 0);
    assert!(memory.initialised_frames.iter().copied().eq(expected));
}

#[test]
fn only_features_in_the_options_are_negotiated() {
    let offered = Features::all() - Features::STATS_VQ - Features::FREE_PAGE_HINT;
    let host = transport::host(offered, QueueNumbering::Dense);
    let options = BalloonOptions { features: Features::PAGE_REPORTING, ..ALL_FEATURES };
    let (mut device, mut memory) = start(&host, options).unwrap();
    let always = Features::MUST_TELL_HOST | Features::VERSION_1 | Features::ORDER_PLATFORM;
    assert_eq!(host.borrow().negotiated_features, always | Features::PAGE_REPORTING);
    device.poll(NOW, BUDGET, &mut memory);
    assert_eq!(memory.count(Frame::Reported), FRAMES);
}

#[test]
fn access_platform_is_never_accepted() {
    const ACCESS_PLATFORM: Features = Features::from_bits_retain(1 << 33);
    let host = transport::host(Features::all() | ACCESS_PLATFORM, QueueNumbering::Dense);
    let _device = start(&host, ALL_FEATURES).unwrap();
    assert!(!host.borrow().negotiated_features.intersects(ACCESS_PLATFORM));
}

#[test]
fn devices_that_cannot_be_started_are_refused() {
    let check = |spoil: &dyn Fn(&mut transport::HostState), expected: InitError| {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        spoil(&mut host.borrow_mut());
        let options = BalloonOptions { poison: Poison::Filled(7), ..ALL_FEATURES };
        assert_eq!(start(&host, options).err().expect("the device cannot be started"), expected);
        assert!(host.borrow().is_transport_dropped, "the transport is not dropped");
        assert!(host.borrow().was_given_up());
    };
    let kind = DeviceType::Memory;
    check(&|h| h.device_type = kind, InitError::Handshake(HandshakeError::DeviceType(kind)));
    check(&|h| h.stuck_in_reset = true, InitError::Handshake(HandshakeError::Reset));
    check(
        &|h| h.offered_features.remove(Features::VERSION_1),
        InitError::Handshake(HandshakeError::Legacy),
    );
    let refused = Features::VERSION_1 | Features::STATS_VQ;
    check(
        &|h| (h.offered_features, h.refuses_features) = (refused, true),
        InitError::Handshake(HandshakeError::Features(refused)),
    );
    let behind_iommu = refused | Features::from_bits_retain(1 << 33);
    check(
        &|h| (h.offered_features, h.refuses_features) = (behind_iommu, true),
        InitError::Handshake(HandshakeError::AccessPlatform),
    );
    let missing = InitError::Queue(QueueMissing(Queue::Reports));
    check(&|h| h.queue_sizes.truncate(4), missing);
    check(&|h| h.queue_sizes[0] = 1, InitError::QueueSize(Queue::Inflate, 1));
    let too_small = InitError::Transport(virtio_drivers::Error::ConfigSpaceTooSmall);
    check(&|h| h.config_len = 8, too_small);
    check(&|h| h.config_len = 12, too_small);
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    let short = SharedPage::new().dma(SharedPage::SIZE - Device::<MockTransport>::MEMORY_SIZE + 16);
    let refused = Device::new(host.transport(), short, ALL_FEATURES).err();
    assert_eq!(refused, Some(InitError::SharedMemory));
}

#[test]
fn a_device_with_eight_bytes_of_configuration_works() {
    let offered = Features::VERSION_1 | Features::STATS_VQ | Features::PAGE_REPORTING;
    let host = transport::host(offered, QueueNumbering::Dense);
    host.borrow_mut().config_len = 8;
    host.borrow_mut().device.config.num_pages = 10;
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    device.poll(NOW, BUDGET, &mut memory);
    assert_eq!(host.borrow().device.balloon.len(), 10);
}

#[test]
fn statistics_reach_the_device_unchanged() {
    let host = transport::host(Features::VERSION_1 | Features::STATS_VQ, QueueNumbering::Dense);
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    memory.statistics = MemoryStatistics::default()
        .with(Statistic::ReclaimedByAllocations, 1 << 20)
        .with(Statistic::Free, 5)
        .with(Statistic::Available, u64::MAX);
    device.poll(NOW, BUDGET, &mut memory);
    let state = host.borrow();
    assert_eq!(state.statistics, [(4, 5), (6, u64::MAX), (15, 1 << 20)]);
}

#[test]
fn buffers_belong_to_the_device_until_a_late_answer() {
    let host =
        transport::host(Features::VERSION_1 | Features::PAGE_REPORTING, QueueNumbering::Dense);
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    host.borrow_mut().ignores_queues = true;
    device.poll(NOW, BUDGET, &mut memory);
    assert_eq!(memory.count(Frame::Reporting), FRAMES);
    let later = NOW + Duration::from_secs(2);
    let next_wait = Progress::Pending(later + Duration::from_secs(1));
    assert_eq!(device.poll(later, BUDGET, &mut memory), next_wait);
    assert_eq!(memory.count(Frame::Reporting), FRAMES);
    host.borrow_mut().ignores_queues = false;
    host.serve();
    assert!(device.ack_interrupt());
    assert!(!device.ack_interrupt());
    device.poll(later, BUDGET, &mut memory);
    assert_eq!(memory.count(Frame::Reported), FRAMES);
}

#[test]
fn reports_work_with_any_queue_size() {
    for (size, max_ranges) in
        [(1, 1), (2, 2), (3, 2), (16, 16), (17, 16), (31, 16), (32, 32), (1024, 32)]
    {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().queue_sizes[4] = size;
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        memory.max_run = 64;
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle, "{size}");
        assert_eq!(memory.count(Frame::Reported), FRAMES, "{size}");
        let reports = FRAMES.div_ceil(64).div_ceil(max_ranges);
        assert_eq!(device.driver().counters().reports, reports as u64, "{size}");
    }
}

/// Polls until the driver stops waiting.
fn poll_to_end(
    mut now: Duration,
    device: &mut Device<MockTransport>,
    memory: &mut TestMemory,
) -> (Duration, Progress) {
    loop {
        match device.poll(now, BUDGET, memory) {
            Progress::Pending(until) => now = until,
            progress => return (now, progress),
        }
    }
}

#[test]
fn a_device_that_does_not_answer_is_reset_and_starts_again() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    host.borrow_mut().device.config.num_pages = 700;
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    host.borrow_mut().ignores_queues = true;
    let mut now = NOW;
    while let Progress::Pending(until) = device.poll(now, BUDGET, &mut memory)
        && device.driver().counters().resets == 0
    {
        assert!(memory.count(Frame::Reporting) > 0);
        now = until;
    }
    assert_eq!(now, NOW + Driver::DEFAULT_ANSWER_TIMEOUT);
    // The device has buffers again, and answers now.
    host.borrow_mut().ignores_queues = false;
    host.serve();
    assert_eq!(poll_to_end(now, &mut device, &mut memory).1, Progress::Idle);
    assert_eq!(device.driver().status(), Status::Settled);
    assert_eq!(device.driver().inflated_frames(), 700);
    assert_eq!(memory.count(Frame::Balloon), 700);
    assert_eq!(memory.count(Frame::Reported), FRAMES - 700);
}

#[test]
fn a_device_that_never_answers_fails_and_its_memory_is_freed() {
    for stuck in [false, true] {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().device.config.num_pages = 700;
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        host.borrow_mut().ignores_queues = true;
        host.borrow_mut().stuck_in_reset = stuck;
        let (failed_at, progress) = poll_to_end(NOW, &mut device, &mut memory);
        let (failure, timeouts) = match stuck {
            true => (Failure::Stuck(NO_ANSWER), 1),
            false => (Failure::Resets(NO_ANSWER), 3),
        };
        assert_eq!(progress, Progress::Ready(failure));
        assert_eq!(device.driver().status(), Status::Failed(failure));
        assert_eq!(failed_at, NOW + timeouts * Driver::DEFAULT_ANSWER_TIMEOUT);
        let free = memory.count(Frame::Free);
        assert_eq!(free == FRAMES, !stuck, "memory is free although the device may still write it");
        assert_eq!(failure.device_holds_no_memory(), !stuck);
        assert_eq!(device.poll(failed_at, BUDGET, &mut memory), progress);
    }
}

#[test]
fn a_device_that_cannot_be_started_again_fails_and_its_memory_is_freed() {
    let spoil: [fn(&mut transport::HostState); 2] = [
        |host| host.offered_features.remove(Features::FREE_PAGE_HINT),
        |host| host.offered_features.remove(Features::VERSION_1),
    ];
    for spoil in spoil {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        host.borrow_mut().ignores_queues = true;
        device.poll(NOW, BUDGET, &mut memory);
        spoil(&mut host.borrow_mut());
        let failed = Progress::Ready(Failure::NotRestarted(NO_ANSWER));
        assert_eq!(poll_to_end(NOW, &mut device, &mut memory).1, failed);
        assert_eq!(memory.count(Frame::Free), FRAMES);
        assert!(Failure::NotRestarted(NO_ANSWER).device_holds_no_memory());
        assert_eq!(device.driver().inflated_frames(), 0);
        assert!(host.borrow().was_given_up());
    }
}

#[test]
fn a_reset_returns_all_memory() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    host.borrow_mut().device.config.num_pages = 512;
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    device.poll(NOW, BUDGET, &mut memory);
    host.borrow_mut().ignores_queues = true;
    memory.change(4000, Frame::Free);
    device.poll(NOW, BUDGET, &mut memory);
    assert!(memory.count(Frame::Reporting) > 0);
    assert!(device.stop(&mut memory).is_ok());
    assert!(host.borrow().is_transport_dropped);
    assert_eq!(memory.count(Frame::Reporting) + memory.count(Frame::Balloon), 0);
}

#[test]
fn a_device_that_was_stopped_in_place_starts_again_at_the_next_poll() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    host.borrow_mut().device.config.num_pages = 700;
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    for _ in 0..5 {
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
        assert_eq!((host.borrow().device.balloon.len(), memory.count(Frame::Balloon)), (700, 700));
        assert_eq!(device.driver().inflated_frames(), 700);
        assert!(device.stop_in_place(&mut memory));
        assert_eq!(memory.count(Frame::Balloon), 0);
        assert_eq!(device.driver().inflated_frames(), 0, "the memory was taken back");
        assert!(!host.borrow().is_transport_dropped);
    }
}

#[test]
fn a_failed_device_that_was_stopped_in_place_starts_again_only_by_a_restart() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    host.borrow_mut().device.config.num_pages = 700;
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    host.borrow_mut().ignores_queues = true;
    let (_, failed) = poll_to_end(NOW, &mut device, &mut memory);
    assert_eq!(failed, Progress::Ready(Failure::Resets(NO_ANSWER)));
    assert!(device.stop_in_place(&mut memory));
    host.borrow_mut().ignores_queues = false;
    assert_eq!(device.poll(NOW, BUDGET, &mut memory), failed);
    device.restart(&mut memory).unwrap();
    assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
    assert_eq!(memory.count(Frame::Balloon), 700);
}

#[test]
fn a_device_that_cannot_be_stopped_in_place_keeps_its_memory() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    host.borrow_mut().device.config.num_pages = 700;
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    device.poll(NOW, BUDGET, &mut memory);
    host.borrow_mut().stuck_in_reset = true;
    assert!(!device.stop_in_place(&mut memory));
    assert_eq!(memory.count(Frame::Balloon), 700, "the device may still write to the memory");
    let stuck = Progress::Ready(Failure::Stuck(ResetCause::NeedsReset));
    assert_eq!(device.poll(NOW, BUDGET, &mut memory), stuck);
    assert_eq!(memory.count(Frame::Balloon), 700, "the device may still write to the memory");
}

#[test]
fn a_device_that_does_not_complete_its_reset_keeps_its_memory() {
    for after_failure in [false, true] {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().device.config.num_pages = 700;
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        host.borrow_mut().ignores_queues = true;
        host.borrow_mut().stuck_in_reset = true;
        if after_failure {
            poll_to_end(NOW, &mut device, &mut memory);
        } else {
            device.poll(NOW, BUDGET, &mut memory);
        }
        let with_device =
            |memory: &TestMemory| memory.count(Frame::Reporting) + memory.count(Frame::Balloon);
        let before = with_device(&memory);
        assert!(before > 0);
        let failure = device.driver().failure().unwrap_or(Failure::Stuck(ResetCause::Restart));
        assert_eq!(device.restart(&mut memory), Err(failure));
        assert!(!failure.device_holds_no_memory());
        assert_eq!(with_device(&memory), before, "the device may still write to free memory");
        let device = device.stop(&mut memory).expect_err("the reset does not complete");
        assert_eq!(with_device(&memory), before, "the device may still write to free memory");
        assert!(!host.borrow().is_transport_dropped);
        host.borrow_mut().stuck_in_reset = false;
        assert!(device.stop(&mut memory).is_ok());
        assert_eq!(memory.count(Frame::Free), FRAMES);
    }
}

#[test]
fn a_device_that_runs_only_with_all_queues_gets_all_queues() {
    for wanted in feature_sets() {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().vmm.needs_all_queues = true;
        host.borrow_mut().device.config.num_pages = 700;
        let options = BalloonOptions { features: wanted, ..ALL_FEATURES };
        let (mut device, mut memory) = start(&host, options).unwrap();
        let always = Features::MUST_TELL_HOST | Features::ORDER_PLATFORM;
        let expected = (wanted & !Features::PAGE_POISON).with_earlier_queues(Features::all());
        let expected = expected | always;
        assert_eq!(host.borrow().negotiated_features, expected);
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(host.borrow().device.balloon.len(), 700);
    }
}

#[test]
fn a_device_that_runs_only_with_all_queues_gets_also_those_that_it_does_not_offer() {
    for offered in feature_sets() {
        for numbering in [QueueNumbering::Dense, QueueNumbering::Listed] {
            let host = transport::host(offered, numbering);
            host.borrow_mut().vmm.needs_all_queues = true;
            let count = if numbering == QueueNumbering::Listed { 5 } else { 4 };
            let sizes = vec![128; host.borrow().queue_sizes.len().max(count)];
            host.borrow_mut().queue_sizes = sizes;
            let device = start(&host, ALL_FEATURES);
            assert!(device.is_ok(), "{offered:?}, {numbering:?}: {:?}", device.err());
        }
    }
}

#[test]
fn queues_that_are_offered_and_not_accepted_may_be_missing_or_hold_one_descriptor() {
    for sizes in [[1, 1, 1], [0, 1, 1], [1, 0, 0]] {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().vmm.needs_all_queues = true;
        host.borrow_mut().queue_sizes[2..].copy_from_slice(&sizes);
        let options = BalloonOptions { features: Features::VERSION_1, ..ALL_FEATURES };
        let device = start(&host, options);
        assert!(device.is_ok(), "{sizes:?}: {:?}", device.err());
    }
}

#[test]
fn a_device_that_does_not_run_after_its_start_is_refused() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    host.borrow_mut().vmm.needs_all_queues = true;
    // The driver knows of no sixth queue.
    host.borrow_mut().queue_sizes.push(128);
    let error = start(&host, ALL_FEATURES).err();
    assert!(
        matches!(error, Some(InitError::NotRunning(status))
            if status.contains(DeviceStatus::DEVICE_NEEDS_RESET)),
        "{error:?}"
    );
    assert!(host.borrow().was_given_up());
}

#[test]
fn a_device_that_does_not_run_any_more_is_started_again_at_the_next_poll() {
    type Spoil = fn(&mut transport::HostState);
    let spoil: [(Spoil, ResetCause); 3] = [
        (|host| host.status |= DeviceStatus::DEVICE_NEEDS_RESET, ResetCause::NeedsReset),
        (|host| host.status |= DeviceStatus::FAILED, ResetCause::NotRunning),
        (transport::HostState::reset, ResetCause::NotRunning),
    ];
    for (spoil, cause) in spoil {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().device.config.num_pages = 700;
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        device.poll(NOW, 20, &mut memory);
        spoil(&mut host.borrow_mut());
        assert_eq!(poll_to_end(NOW, &mut device, &mut memory).1, Progress::Idle);
        assert_eq!(device.driver().counters().resets, 1);
        assert_eq!((device.take_reset(), device.take_reset()), (Some(cause), None));
        assert_eq!(host.borrow().device.balloon.len(), 700);
        assert_eq!(memory.count(Frame::Balloon), 700);
        // A device that never runs for long is given up.
        host.borrow_mut().ignores_queues = true;
        host.borrow_mut().device.config.num_pages = 0;
        let failure = loop {
            spoil(&mut host.borrow_mut());
            if let Progress::Ready(failure) = device.poll(NOW, BUDGET, &mut memory) {
                break failure;
            }
        };
        assert_eq!(failure, Failure::Resets(cause));
        assert_eq!(device.driver().inflated_frames(), 0);
        assert_eq!(memory.count(Frame::Balloon) + memory.count(Frame::Reporting), 0);
    }
}

#[test]
fn a_device_that_corrupts_a_queue_fails() {
    let cases = [
        (Violation::Id(7), QueueError::UsedId(7)),
        (Violation::Index(9), QueueError::UsedIndex(9)),
        (
            Violation::Length(u32::MAX),
            QueueError::UsedLength { token: 0, reported: u32::MAX, given: 4096 * FRAMES as u32 },
        ),
    ];
    for (violation, error) in cases {
        let host =
            transport::host(Features::VERSION_1 | Features::PAGE_REPORTING, QueueNumbering::Dense);
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        host.borrow_mut().violation = Some(violation);
        let failed = Progress::Ready(Failure::Queue(Queue::Reports));
        for _ in 0..3 {
            assert_eq!(device.poll(NOW, BUDGET, &mut memory), failed);
        }
        assert_eq!(device.queue_error(), Some(error));
        assert_eq!(
            memory.count(Frame::Reporting),
            FRAMES,
            "memory is free although the device may still write it"
        );
        assert_eq!(host.borrow().notifications, 1, "the driver sends a further request");
    }
}

#[test]
fn notifications_that_the_device_suppresses_are_not_sent() {
    let host = transport::host(Features::VERSION_1, QueueNumbering::Dense);
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    host.borrow_mut().device.config.num_pages = 1;
    host.borrow_mut().queue(0).poll_only();
    device.poll(NOW, BUDGET, &mut memory);
    assert_eq!(host.borrow().notifications, 0);
    host.serve();
    assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
    assert_eq!(device.driver().inflated_frames(), 1);
}

#[test]
fn interrupts_can_be_suppressed_for_each_queue() {
    for suppressed in Queue::ALL {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        device.suppress_interrupts(suppressed);
        device.poll(NOW, BUDGET, &mut memory);
        for (number, queue) in Queue::ALL.into_iter().enumerate() {
            let suppressed_now = host.borrow_mut().queue(number).suppresses_interrupt();
            // Interrupts of hints are always suppressed.
            let expected = queue == suppressed || queue == Queue::Hints;
            assert_eq!(suppressed_now, expected, "{suppressed:?}: {queue:?}");
        }
    }
}

#[test]
fn a_device_that_missed_a_hint_is_notified_again() {
    for queue_features in [0, QueueFeatures::BITS] {
        let host = transport::host(Features::all(), QueueNumbering::Dense);
        host.borrow_mut().offered_queue_features = queue_features;
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        let is_waiting = |progress| !matches!(progress, Progress::Working);
        while !is_waiting(device.poll(NOW, BUDGET, &mut memory)) {}
        host.serve();
        while !is_waiting(device.poll(NOW, BUDGET, &mut memory)) {}
        host.borrow_mut().ignores_queues = true;
        host.borrow_mut().device.request_hints(7);
        let mut notified = || {
            device.poll(NOW, BUDGET, &mut memory);
            std::mem::take(&mut host.borrow_mut().notifications)
        };
        assert!(notified() >= 1, "the driver does not notify the device of the command");
        for _ in 0..3 {
            assert_eq!(notified(), 1);
        }
        // The device suppresses notifications, because it polls. By an index it can say so only of
        // chains that it has not got yet.
        host.borrow_mut().queue(3).poll_only();
        assert_eq!(notified(), u32::from(queue_features != 0));
    }
}

#[test]
fn a_resize_with_a_small_budget_takes_several_polls() {
    let host = transport::host(Features::VERSION_1, QueueNumbering::Dense);
    host.borrow_mut().device.config.num_pages = 700;
    let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
    let polls = (1..100).find(|_| device.poll(NOW, 1, &mut memory) == Progress::Idle);
    assert!(polls.unwrap() > 3);
    assert_eq!(device.poll(NOW, 0, &mut memory), Progress::Working);
}

#[test]
fn a_configuration_that_becomes_inaccessible_is_a_failure() {
    let too_small = virtio_drivers::Error::ConfigSpaceTooSmall;
    // The access that fails is the read of `num_pages` or the write of `actual`.
    for config_len in [0, 4] {
        let host = transport::host(Features::VERSION_1, QueueNumbering::Dense);
        let (mut device, mut memory) = start(&host, ALL_FEATURES).unwrap();
        device.poll(NOW, BUDGET, &mut memory);
        host.borrow_mut().config_len = config_len;
        host.borrow_mut().device.config.num_pages = 256;
        let failed = device.poll(NOW, BUDGET, &mut memory);
        assert_eq!(failed, Progress::Ready(Failure::ConfigSpace), "{config_len}");
        assert_eq!(device.transport_error(), Some(too_small));
    }
}
