//! Tests that the driver resets a device that does not run any more, and starts it again.

use crate::transport::{Host, HostState};
use crate::vmm::Vmm;
use crate::{BUDGET, MIB, NOW, host, start};
use core::time::Duration;
use hotmem_virtio::HandshakeError;
use hotmem_virtio::mem::{Failure, InitError, Progress, ResetCause, Status};
use virtio_drivers::transport::DeviceStatus;

fn needs_reset(host: &mut HostState) {
    host.status |= DeviceStatus::DEVICE_NEEDS_RESET;
}

type Stop = fn(&mut HostState);
const STOPS: [(Stop, ResetCause); 2] =
    [(needs_reset, ResetCause::NeedsReset), (HostState::reset, ResetCause::ResetItself)];

#[test]
fn a_device_that_stops_is_started_again_and_the_kernel_is_told_once() {
    for vmm in Vmm::each() {
        for (stop, cause) in STOPS {
            let host = host(vmm);
            let (mut device, mut memory) = start(&host).unwrap();
            device.poll(NOW, BUDGET, &mut memory);
            assert_eq!(device.take_reset(), None);
            let requests = device.driver().statistics().requests;
            host.borrow_mut().device.resize(128 * MIB);
            stop(&mut host.borrow_mut());
            assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
            assert_eq!(device.driver().status(), Status::Reached);
            assert_eq!(device.driver().plugged().0, 128 * MIB);
            assert_eq!(memory.plugged_units(), 64);
            assert_eq!((device.take_reset(), device.take_reset()), (Some(cause), None));
            assert_eq!(device.resets(), 1);
            assert!(device.driver().statistics().requests > requests, "the counters begin again");
        }
    }
}

#[test]
fn a_device_that_stops_while_the_driver_waits_is_started_again() {
    for (stop, cause) in STOPS {
        let host = host(Vmm::QEMU);
        let (mut device, mut memory) = start(&host).unwrap();
        host.borrow_mut().ignores_queues = true;
        let waiting = device.poll(NOW, BUDGET, &mut memory);
        assert!(matches!(waiting, Progress::Pending(_)), "{waiting:?}");
        // The device has carried out the request, and stops instead of answering.
        host.borrow_mut().carry_out();
        stop(&mut host.borrow_mut());
        host.borrow_mut().ignores_queues = false;
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.take_reset(), Some(cause));
        assert_eq!(device.driver().status(), Status::Reached);
        assert_eq!(memory.plugged_units(), 32);
    }
}

#[test]
fn the_answer_of_a_device_that_needs_a_reset_is_not_relied_on() {
    let host = host(Vmm::QEMU);
    let (mut device, mut memory) = start(&host).unwrap();
    host.borrow_mut().ignores_queues = true;
    device.poll(NOW, BUDGET, &mut memory);
    host.serve();
    needs_reset(&mut host.borrow_mut());
    // The device loses the memory at its reset, although it has acknowledged the request.
    let blocks = host.borrow().device.blocks.len();
    host.borrow_mut().device.set_plugged(0..blocks, false);
    host.borrow_mut().ignores_queues = false;
    assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
    assert_eq!(host.borrow().device.config.plugged_size, 64 * MIB);
    assert_eq!(memory.plugged_units(), 32);
}

/// Lets the device stop before each poll, until the driver fails. Returns the number of resets.
fn stop_until_failure(host: &Host, expected: Failure) -> u64 {
    let (mut device, mut memory) = start(host).unwrap();
    host.borrow_mut().ignores_queues = true;
    for _ in 0..100 {
        needs_reset(&mut host.borrow_mut());
        if let Progress::Ready(failure) = device.poll(NOW, BUDGET, &mut memory) {
            assert_eq!(failure, expected);
            assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Ready(failure));
            return device.resets();
        }
    }
    panic!("the driver resets the device for ever");
}

#[test]
fn a_device_that_stops_again_and_again_without_an_answer_is_given_up() {
    for vmm in Vmm::each() {
        let host = host(vmm);
        assert_eq!(stop_until_failure(&host, Failure::NotRunning), 3);
        assert!(host.borrow().was_given_up());
    }
}

#[test]
fn a_device_that_answers_between_its_stops_is_never_given_up() {
    let host = host(Vmm::QEMU);
    let (mut device, mut memory) = start(&host).unwrap();
    for round in 0..20 {
        host.borrow_mut().device.resize((round % 2 + 1) * 64 * MIB);
        needs_reset(&mut host.borrow_mut());
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
        assert_eq!(device.resets(), round + 1);
    }
}

#[test]
fn a_device_that_cannot_be_started_again_says_why() {
    let host = host(Vmm::QEMU);
    let (mut device, mut memory) = start(&host).unwrap();
    device.poll(NOW, BUDGET, &mut memory);
    needs_reset(&mut host.borrow_mut());
    host.borrow_mut().stuck_in_reset = true;
    let failed = Progress::Ready(Failure::NotRunning);
    assert_eq!(device.poll(NOW, BUDGET, &mut memory), failed);
    let stuck = InitError::Handshake(HandshakeError::Reset);
    assert_eq!(device.restart_error(), Some(stuck));
    assert_eq!(memory.plugged_units(), 32, "the driver loses plugged memory");
    host.borrow_mut().stuck_in_reset = false;
    device.restart().unwrap();
    assert_eq!(device.restart_error(), None);
    assert_eq!(device.poll(NOW + Duration::from_secs(1), BUDGET, &mut memory), Progress::Idle);
}

#[test]
fn a_device_that_has_another_region_after_its_reset_is_not_started_again() {
    for (stop, _) in STOPS {
        let host = host(Vmm::QEMU);
        let (mut device, mut memory) = start(&host).unwrap();
        device.poll(NOW, BUDGET, &mut memory);
        let region = device.driver().config().region();
        stop(&mut host.borrow_mut());
        host.borrow_mut().device.config.addr += 1 << 30;
        let failed = Progress::Ready(Failure::NotRunning);
        assert_eq!(device.poll(NOW, BUDGET, &mut memory), failed);
        assert!(matches!(device.restart_error(), Some(InitError::Config(_))));
        assert_eq!(device.driver().config().region(), region);
        assert!(host.borrow().was_given_up());
    }
}
