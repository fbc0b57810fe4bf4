//! Tests the driver on a transport, including the bytes in the queue.

// Tests run on 64-bit machines.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)]
#[path = "../mem/device.rs"]
mod device;
mod hotplug_device;
#[allow(dead_code)]
#[path = "../mem/memory.rs"]
mod memory;
mod mmio;
#[allow(dead_code)]
#[path = "../common/mock_transport.rs"]
mod mock_transport;
mod neighbour;
mod resets;
mod restarts;
#[allow(dead_code)]
#[path = "../queue/shared.rs"]
mod shared;
mod transport;
#[allow(dead_code)]
#[path = "../common/vmm.rs"]
mod vmm;

use core::time::Duration;
use device::{BUSY, Device as MockDevice, Fault};
use hotmem_virtio::HandshakeError;
use hotmem_virtio::mem::{
    Device, Failure, Features, InitError, Leftover, Pending, Progress, RawConfig, ResponseError,
    Status,
};
use hotmem_virtio::queue::{QueueError, QueueFeatures};
use memory::TestMemory;
use mock_transport::Violation;
use shared::SharedPage;
use transport::{Host, MockTransport};
use virtio_drivers::transport::{DeviceStatus, DeviceType};
use vmm::Vmm;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const NOW: Duration = Duration::from_secs(1);
const BUDGET: u32 = 1000;

/// Returns a device with a requested size of 64 MiB, which is not started yet.
fn host(vmm: Vmm) -> Host {
    let mut device = MockDevice::new(2 * MIB, 4 * GIB, 64 * GIB);
    device.resize(64 * MIB);
    transport::host(vmm, device)
}

fn start(host: &Host) -> Result<(Device<MockTransport>, TestMemory), InitError> {
    let device = Device::new(host.transport(), host.page().dma(0))?;
    let config = device.driver().config();
    let memory = TestMemory::new(config.managed(), config.unit_frames());
    Ok((device, memory))
}

/// Starts a device that the driver must refuse, and returns the error.
fn start_error(host: &Host) -> InitError {
    let error = start(host).err().expect("the device cannot be started");
    assert!(host.borrow().is_transport_dropped, "the transport is not dropped");
    error
}

#[test]
fn a_device_is_started_and_resized() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        assert_eq!(host.borrow().negotiated_features, Features::all());
        for size in [64 * MIB, 64 * GIB, 0, 2 * GIB] {
            host.borrow_mut().device.resize(size);
            assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
            assert_eq!(device.driver().status(), Status::Reached);
            assert_eq!(device.driver().plugged().0, size);
            assert_eq!(host.borrow().device.config.plugged_size, size);
            assert_eq!(memory.plugged_units() * 2 * MIB, size);
        }
        drop(device);
        assert!(host.borrow().is_transport_dropped);
    }
}

#[test]
fn a_device_is_resized_with_all_features_of_queues() {
    for queue_features in mock_transport::queue_feature_sets() {
        let host = host(Vmm::QEMU);
        host.borrow_mut().offered_queue_features = queue_features;
        let (mut device, mut memory) = start(&host).unwrap();
        assert_eq!(host.borrow().queue_features, QueueFeatures::of_device(queue_features));
        for size in [64 * MIB, 64 * GIB, 0] {
            host.borrow_mut().device.resize(size);
            assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
            assert_eq!(host.borrow().device.config.plugged_size, size);
        }
    }
}

#[test]
fn a_second_start_keeps_plugged_memory() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        device.poll(NOW, BUDGET, &mut memory);
        drop(device);
        let (mut device, _) = start(&host).unwrap();
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.driver().plugged().0, 64 * MIB);
        assert_eq!(memory.plugged_units(), 32);
    }
}

#[test]
fn devices_that_cannot_be_started_are_refused() {
    for vmm in Vmm::each() {
        let check = |spoil: &dyn Fn(&mut transport::HostState), expected: InitError| {
            let host = host(vmm);
            spoil(&mut host.borrow_mut());
            assert_eq!(start_error(&host), expected);
        };
        let kind = DeviceType::Block;
        check(&|h| h.device_type = kind, InitError::Handshake(HandshakeError::DeviceType(kind)));
        check(&|h| h.stuck_in_reset = true, InitError::Handshake(HandshakeError::Reset));
        check(
            &|h| h.offered_features.remove(Features::VERSION_1),
            InitError::Handshake(HandshakeError::Legacy),
        );
        let offered = Features::VERSION_1 | Features::ACPI_PXM;
        check(
            &|h| (h.offered_features, h.refuses_features) = (offered, true),
            InitError::Handshake(HandshakeError::Features(offered)),
        );
        check(&|h| h.queue_sizes[0] = 4, InitError::QueueSize(4));
        let too_small = virtio_drivers::Error::ConfigSpaceTooSmall;
        check(&|h| h.config_len = 52, InitError::Transport(too_small));
        check(&|h| h.changing_reads = u32::MAX, InitError::ConfigUnsteady);
        let host = host(vmm);
        host.borrow_mut().device.config.block_size = 3;
        assert!(matches!(start_error(&host), InitError::Config(_)));
        let memory =
            SharedPage::new().dma(SharedPage::SIZE - Device::<MockTransport>::MEMORY_SIZE + 16);
        let error = Device::new(host.transport(), memory).err();
        assert_eq!(error, Some(InitError::SharedMemory));
    }
}

#[test]
fn queues_of_every_size_work_or_are_refused() {
    for vmm in Vmm::each() {
        for size in (0..=15).map(|order| 1 << order) {
            let host = host(vmm);
            host.borrow_mut().queue_sizes[0] = size;
            if size < 8 {
                assert_eq!(start_error(&host), InitError::QueueSize(size));
                continue;
            }
            let (mut device, mut memory) = start(&host).unwrap();
            // Sends more requests than the queue has descriptors.
            for target in [64 * MIB, 0].repeat(20) {
                host.borrow_mut().device.resize(target);
                assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
                assert_eq!(device.driver().status(), Status::Reached);
                assert_eq!(host.borrow().device.config.plugged_size, target, "{size}");
            }
        }
    }
}

#[test]
fn the_device_status_shows_a_start_and_a_refusal() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (_device, _) = start(&host).unwrap();
        assert!(host.borrow().status.contains(DeviceStatus::DRIVER_OK));
        let legacy = self::host(vmm);
        legacy.borrow_mut().offered_features.remove(Features::VERSION_1);
        start_error(&legacy);
        assert!(legacy.borrow().was_given_up());
    }
}

#[test]
fn only_offered_features_are_negotiated() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        host.borrow_mut().offered_features = Features::VERSION_1 | Features::UNPLUGGED_INACCESSIBLE;
        start(&host).unwrap();
        let expected = Features::VERSION_1 | Features::UNPLUGGED_INACCESSIBLE;
        assert_eq!(host.borrow().negotiated_features, expected);
    }
}

#[test]
fn a_device_that_needs_the_barriers_of_the_platform_gets_them() {
    const ORDER_PLATFORM: Features = Features::from_bits_retain(1 << 36);
    for vmm in Vmm::each() {
        let host = host(vmm);
        host.borrow_mut().offered_features |= ORDER_PLATFORM;
        start(&host).unwrap();
        assert!(host.borrow().negotiated_features.contains(ORDER_PLATFORM));
    }
}

#[test]
fn a_torn_configuration_is_read_again() {
    for vmm in Vmm::each() {
        // The device's generation changes in one case and does not change in the other.
        for torn_read_changes_generation in [true, false] {
            let host = host(vmm);
            let (mut device, mut memory) = start(&host).unwrap();
            device.poll(NOW, BUDGET, &mut memory);
            let mut state = host.borrow_mut();
            state.torn_read_changes_generation = torn_read_changes_generation;
            let torn = RawConfig {
                requested_size: 48 * GIB,
                usable_region_size: 3,
                ..state.device.config
            };
            // Without a change of the generation, two equal reads count as consistent.
            let changes_generation = torn_read_changes_generation && !vmm.has_no_generation;
            state.torn_config = Some((torn, 1 + u32::from(changes_generation)));
            state.device.resize(128 * MIB);
            drop(state);
            device.poll(NOW, BUDGET, &mut memory);
            assert_eq!(device.driver().plugged().0, 128 * MIB);
        }
    }
}

#[test]
fn a_device_whose_generation_keeps_changing_works() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        host.borrow_mut().generation_always_changes = true;
        let (mut device, mut memory) = start(&host).unwrap();
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.driver().plugged().0, 64 * MIB);
    }
}

#[test]
fn a_configuration_that_keeps_changing_is_read_again_later() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        device.poll(NOW, BUDGET, &mut memory);
        host.borrow_mut().device.resize(128 * MIB);
        host.borrow_mut().changing_reads = u32::MAX;
        let reads = host.borrow().config_reads;
        let later = NOW + Duration::from_millis(10);
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Pending(later));
        assert!(host.borrow().config_reads - reads < 400);
        assert_eq!(
            device.driver().plugged().0,
            64 * MIB,
            "the driver does not use the last consistent configuration"
        );
        host.borrow_mut().changing_reads = 0;
        assert_eq!(device.poll(later, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.driver().plugged().0, 128 * MIB);
    }
}

#[test]
fn a_retry_after_busy_is_not_delayed_by_a_changing_configuration() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        host.borrow_mut().device.faults.push_back(Fault::Refuse(BUSY));
        host.borrow_mut().changing_reads = u32::MAX;
        let soon = NOW + Duration::from_millis(1);
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Pending(soon));
    }
}

#[test]
fn a_resize_with_a_small_budget_takes_several_polls() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        let polls = (1..20).find(|_| device.poll(NOW, 1, &mut memory) == Progress::Idle);
        assert!(polls.unwrap() > 1);
        assert_eq!(device.poll(NOW, 0, &mut memory), Progress::Working);
    }
}

#[test]
fn buffers_belong_to_the_device_until_a_late_answer() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        host.borrow_mut().ignores_queues = true;
        let deadline = NOW + Duration::from_secs(1);
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Pending(deadline));
        let before = host.borrow().page.read(host.page().dma(0).device_addr(), SharedPage::SIZE);
        host.borrow_mut().device.resize(0);
        for _ in 0..5 {
            assert_eq!(device.poll(deadline, BUDGET, &mut memory), Progress::Idle);
        }
        assert_eq!(device.driver().status(), Status::Pending(Pending::NoAnswer));
        let after = host.borrow().page.read(host.page().dma(0).device_addr(), SharedPage::SIZE);
        assert_eq!(before, after, "the driver changes buffers of the device");
        host.borrow_mut().ignores_queues = false;
        host.serve();
        assert!(device.ack_interrupt());
        assert!(!device.ack_interrupt());
        // The outstanding PLUG arrives after the requested size was reduced, so the device refuses it.
        let Progress::Pending(until) = device.poll(deadline, BUDGET, &mut memory) else {
            panic!("{:?}", device.driver());
        };
        assert_eq!(device.poll(until, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.driver().status(), Status::Reached);
        assert_eq!(device.driver().statistics().overdue_requests, 1);
    }
}

#[test]
fn a_busy_device_is_retried() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        host.borrow_mut().device.faults.push_back(Fault::Refuse(BUSY));
        let later = NOW + Duration::from_millis(1);
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Pending(later));
        assert_eq!(device.poll(later, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.driver().plugged().0, 64 * MIB);
    }
}

#[test]
fn notifications_that_the_device_suppresses_are_not_sent() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        host.borrow_mut().queue(0).poll_only();
        let progress = device.poll(NOW, BUDGET, &mut memory);
        assert!(matches!(progress, Progress::Pending(_)));
        assert_eq!(host.borrow().notifications, 0);
        host.serve();
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
    }
}

#[test]
fn interrupts_can_be_suppressed() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        assert!(!host.borrow_mut().queue(0).suppresses_interrupt());
        device.suppress_interrupts();
        device.poll(NOW, BUDGET, &mut memory);
        assert!(host.borrow_mut().queue(0).suppresses_interrupt());
        host.serve();
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
    }
}

#[test]
fn a_device_that_corrupts_its_queue_fails() {
    for vmm in Vmm::each() {
        let cases = [
            (Violation::Id(7), QueueError::UsedId(7)),
            (Violation::Index(9), QueueError::UsedIndex(9)),
            (Violation::Length(11), QueueError::UsedLength { token: 0, reported: 11, given: 10 }),
        ];
        for (violation, error) in cases {
            let host = host(vmm);
            let (mut device, mut memory) = start(&host).unwrap();
            device.poll(NOW, BUDGET, &mut memory);
            host.borrow_mut().device.resize(128 * MIB);
            host.borrow_mut().violation = Some(violation);
            let failed = Progress::Ready(Failure::Response(ResponseError::Short { used: 0 }));
            for _ in 0..3 {
                assert_eq!(device.poll(NOW, BUDGET, &mut memory), failed);
            }
            assert_eq!(device.queue_error(), Some(error));
            assert_eq!(memory.plugged_units(), 32, "the driver loses plugged memory");
            assert_eq!(host.borrow().notifications, 2, "the driver sends a further request");
        }
    }
}

#[test]
fn a_short_answer_fails_the_device() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        host.borrow_mut().device.faults.push_back(Fault::Bytes(&[0; 9]));
        let short = Failure::Response(ResponseError::Short { used: 9 });
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Ready(short));
        assert_eq!(device.queue_error(), None);
    }
}

#[test]
fn a_used_buffer_without_an_answer_fails_the_device() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        device.poll(NOW, BUDGET, &mut memory);
        host.borrow_mut().device.resize(128 * MIB);
        host.borrow_mut().omits_answers = true;
        let failure = Failure::Response(ResponseError::UnknownType(0xffff));
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Ready(failure));
    }
}

#[test]
fn a_configuration_that_becomes_unreadable_is_a_failure() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        device.poll(NOW, BUDGET, &mut memory);
        host.borrow_mut().config_len = 52;
        for _ in 0..2 {
            let failed = device.poll(NOW, BUDGET, &mut memory);
            assert_eq!(failed, Progress::Ready(Failure::ConfigSpace));
        }
        assert_eq!(device.driver().status(), Status::Failed(Failure::ConfigSpace));
        let too_small = virtio_drivers::Error::ConfigSpaceTooSmall;
        assert_eq!(device.transport_error(), Some(too_small));
        assert_eq!(memory.plugged_units(), 32, "the driver loses plugged memory");
    }
}

#[test]
fn a_device_that_does_not_run_after_driver_ok_is_refused() {
    for vmm in Vmm::each() {
        for bit in [DeviceStatus::FAILED, DeviceStatus::DEVICE_NEEDS_RESET] {
            let host = host(vmm);
            host.borrow_mut().status_at_driver_ok = bit;
            let error = start_error(&host);
            assert!(matches!(error, InitError::NotRunning(status) if status.contains(bit)));
        }
    }
}

#[test]
fn a_device_that_has_failed_or_is_gone_is_a_failure_until_it_is_started_again() {
    for vmm in Vmm::each() {
        let given_up = |status: DeviceStatus| status | DeviceStatus::FAILED;
        let gone = |_| DeviceStatus::all();
        for change in [given_up, gone] {
            let host = host(vmm);
            let (mut device, mut memory) = start(&host).unwrap();
            device.poll(NOW, BUDGET, &mut memory);
            let status = host.borrow().status;
            host.borrow_mut().status = change(status);
            host.borrow_mut().device.resize(128 * MIB);
            for _ in 0..2 {
                let failed = Progress::Ready(Failure::NotRunning);
                assert_eq!(device.poll(NOW, BUDGET, &mut memory), failed);
            }
            assert_eq!(host.borrow().notifications, 1, "the driver sends a request");
            assert_eq!(memory.plugged_units(), 32, "the driver loses plugged memory");
            device.restart().unwrap();
            assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
            assert_eq!(device.driver().plugged().0, 128 * MIB);
        }
    }
}

#[test]
fn no_request_is_sent_after_a_restart_that_failed() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        let (mut device, mut memory) = start(&host).unwrap();
        device.poll(NOW, BUDGET, &mut memory);
        host.borrow_mut().device.resize(128 * MIB);
        host.borrow_mut().refuses_features = true;
        assert!(device.restart().is_err());
        // The device now accepts whatever the driver does.
        host.borrow_mut().refuses_features = false;
        host.borrow_mut().status =
            DeviceStatus::all() - DeviceStatus::FAILED - DeviceStatus::DEVICE_NEEDS_RESET;
        for _ in 0..2 {
            let failed = Progress::Ready(Failure::NotRunning);
            assert_eq!(device.poll(NOW, BUDGET, &mut memory), failed);
        }
        assert_eq!(host.borrow().notifications, 1, "the driver sends a request");
        device.restart().unwrap();
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.driver().plugged().0, 128 * MIB);
    }
}

#[test]
fn leftover_memory_is_adopted_or_unplugged() {
    for vmm in Vmm::each() {
        for leftover in [Leftover::Adopt, Leftover::UnplugAll] {
            let host = host(vmm);
            (0..20).for_each(|block| host.borrow_mut().device.preplug(3 * block));
            let (mut device, mut memory) = start(&host).unwrap();
            device.set_leftover(leftover);
            device.poll(NOW, BUDGET, &mut memory);
            if leftover == Leftover::UnplugAll && vmm.unplug_all_empties_usable_region {
                assert_eq!(host.borrow().device.config.plugged_size, 0);
                host.borrow_mut().device.resize(64 * MIB);
                device.poll(NOW, BUDGET, &mut memory);
            }
            assert_eq!(device.driver().status(), Status::Reached);
            assert_eq!(memory.plugged_units(), 32);
            assert_eq!(host.borrow().device.blocks[57], leftover == Leftover::Adopt);
        }
    }
}
