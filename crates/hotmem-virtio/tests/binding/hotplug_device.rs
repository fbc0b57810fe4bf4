//! Tests a device together with the engine.

use crate::transport::{self, Host};
use crate::vmm::Vmm;
use crate::{BUDGET, MIB, MockDevice, NOW};
use hotmem::{
    AllocRequest, AlwaysMapped, Budget, Bytes, Frames, Hotplug, NoHooks, OneCpu, OnlineType,
    Progress as HotmemProgress,
};
use hotmem_testkit::{Memory, SECTION, Validated as _, boot};
use hotmem_virtio::mem::{
    Failure, HotplugDevice, HotplugMemory, InitError, Progress, Remaining, Status,
};

type Device<'f> = HotplugDevice<'f, transport::MockTransport, OneCpu>;
type Engine<'f> = Hotplug<'f, OneCpu, AlwaysMapped>;

/// Returns a device of 256 MiB above a section of boot memory.
fn host(vmm: Vmm) -> Host {
    transport::host(vmm, MockDevice::new(2 * MIB, 256 * MIB, 256 * MIB))
}

fn start<'f>(host: &Host, memory: HotplugMemory<'f, OneCpu>) -> Device<'f> {
    HotplugDevice::new(host.transport(), host.page().dma(0), memory).unwrap()
}

fn poll<'f>(device: &mut Device<'f>, engine: &mut Engine<'f>) -> Progress {
    device.poll(NOW, BUDGET, engine, &mut NoHooks).unwrap()
}

fn memory<'f>() -> HotplugMemory<'f, OneCpu> {
    HotplugMemory::new(OnlineType::Kernel, Budget { pageblocks: 64 })
}

#[test]
fn memory_is_plugged_and_unplugged_as_the_host_requests() {
    for vmm in Vmm::each() {
        let (host, ram, frames) = (host(vmm), Memory::new(4 * SECTION), Frames::new(OneCpu));
        let mut engine = boot(&frames, &ram, SECTION);
        let mut device = start(&host, memory());
        for size in [64 * MIB, 256 * MIB, 0] {
            host.borrow_mut().device.resize(size);
            assert_eq!(poll(&mut device, &mut engine), Progress::Idle);
            assert_eq!((device.requested(), device.driver().plugged()), (Bytes(size), Bytes(size)));
            assert_eq!(frames.counts().online, SECTION + Bytes(size).frames());
        }
    }
}

#[test]
fn a_device_refuses_another_engine() {
    for vmm in Vmm::each() {
        let (host, ram, frames) = (host(vmm), Memory::new(4 * SECTION), Frames::new(OneCpu));
        let (other_ram, other_frames) = (Memory::new(4 * SECTION), Frames::new(OneCpu));
        let mut engine = boot(&frames, &ram, SECTION);
        let mut device = start(&host, memory());
        poll(&mut device, &mut engine);
        let mut other_engine = boot(&other_frames, &other_ram, SECTION);
        assert!(device.poll(NOW, BUDGET, &mut other_engine, &mut NoHooks).is_err());
    }
}

#[test]
fn a_device_that_has_failed_is_started_again_with_its_memory() {
    for vmm in Vmm::each() {
        let (host, ram, frames) = (host(vmm), Memory::new(4 * SECTION), Frames::new(OneCpu));
        let mut engine = boot(&frames, &ram, SECTION);
        let mut device = start(&host, memory());
        host.borrow_mut().device.resize(64 * MIB);
        poll(&mut device, &mut engine);
        let allocation =
            frames.alloc(AllocRequest::frames(1).within(hotmem_testkit::pfn(2 * SECTION)..));
        let allocation = allocation.unwrap();

        host.borrow_mut().device.config.block_size = 3;
        assert!(matches!(poll(&mut device, &mut engine), Progress::Ready(Failure::Config(_))));
        assert!(matches!(device.restart(), Err(InitError::Config(_))));
        assert!(matches!(poll(&mut device, &mut engine), Progress::Ready(Failure::Config(_))));
        host.borrow_mut().device.config.block_size = 2 * MIB;
        host.borrow_mut().device.resize(128 * MIB);
        device.restart().unwrap();
        assert_eq!(poll(&mut device, &mut engine), Progress::Idle);
        assert_eq!(device.driver().status(), Status::Reached);
        assert_eq!(frames.counts().online, SECTION + Bytes::mib(128).frames());
        drop(allocation);
        host.borrow_mut().device.resize(0);
        poll(&mut device, &mut engine);
        assert_eq!(frames.counts().online, SECTION);
    }
}

#[test]
fn each_request_adds_at_most_the_maximum_but_at_least_one_block() {
    for vmm in Vmm::each() {
        let (host, ram, frames) = (host(vmm), Memory::new(4 * SECTION), Frames::new(OneCpu));
        let mut engine = boot(&frames, &ram, SECTION);
        for (max_addition, requests) in [(Bytes::mib(64), 4), (Bytes::mib(65), 4), (Bytes(1), 128)]
        {
            let mut device = start(&host, memory().with_max_addition(max_addition));
            host.borrow_mut().device.resize(256 * MIB);
            poll(&mut device, &mut engine);
            assert_eq!(device.driver().statistics().requests, requests, "{max_addition}");
            host.borrow_mut().device.resize(0);
            poll(&mut device, &mut engine);
        }
    }
}

/// Withdraws the memory of a device until it is removed, or some of it cannot be removed.
fn withdraw<'f>(
    memory: &mut HotplugMemory<'f, OneCpu>,
    engine: &mut Engine<'f>,
) -> HotmemProgress<(), Remaining> {
    loop {
        match memory.withdraw(engine, &mut NoHooks).unwrap() {
            HotmemProgress::Working => {}
            progress => return progress,
        }
    }
}

#[test]
fn a_device_is_stopped_during_any_request_and_withdrawn() {
    for vmm in Vmm::each() {
        for (from, to) in [(0, 192 * MIB), (192 * MIB, 64 * MIB)] {
            for is_carried_out in [false, true] {
                let (host, ram, frames) =
                    (host(vmm), Memory::new(4 * SECTION), Frames::new(OneCpu));
                let mut engine = boot(&frames, &ram, SECTION);
                let mut device = start(&host, memory());
                host.borrow_mut().device.resize(from);
                poll(&mut device, &mut engine);
                host.borrow_mut().device.resize(to);
                host.borrow_mut().device.requested_seen = to;
                host.borrow_mut().ignores_queues = true;
                poll(&mut device, &mut engine);
                if is_carried_out {
                    host.borrow_mut().carry_out();
                }
                host.borrow_mut().stuck_in_reset = true;
                let Err(mut device) = device.stop() else { panic!("the device is stuck") };
                let failed = Progress::Ready(Failure::NotRunning);
                assert_eq!(poll(&mut device, &mut engine), failed);
                host.borrow_mut().stuck_in_reset = false;
                let mut memory = device.stop().ok().expect("the device is reset");
                assert!(host.borrow().is_transport_dropped);

                let online = frames.counts().online - SECTION;
                let in_use = (online > 0).then(|| {
                    let device_memory = hotmem_testkit::pfn(2 * SECTION)..;
                    frames.alloc(AllocRequest::frames(1).within(device_memory)).unwrap()
                });
                if let Some(in_use) = in_use {
                    let progress = withdraw(&mut memory, &mut engine);
                    let HotmemProgress::Pending(remaining) = progress else {
                        panic!("{progress:?}")
                    };
                    // The frame cannot be moved, so its pageblock remains, and is in use.
                    assert_eq!(remaining.size, Bytes::mib(2));
                    assert_eq!(frames.counts().online, SECTION + 512);
                    drop(in_use);
                }
                assert_eq!(withdraw(&mut memory, &mut engine), HotmemProgress::Ready(()));
                let counts = frames.counts();
                assert_eq!((counts.present, counts.online), (SECTION, SECTION));
                assert_eq!(engine.regions().count(), 1, "the region is still announced");
                frames.validated().unwrap();
            }
        }
    }
}

#[test]
fn a_stopped_device_is_started_again_with_its_memory() {
    for vmm in Vmm::each() {
        let (host, ram, frames) = (host(vmm), Memory::new(4 * SECTION), Frames::new(OneCpu));
        let mut engine = boot(&frames, &ram, SECTION);
        let mut device = start(&host, memory());
        host.borrow_mut().device.resize(192 * MIB);
        poll(&mut device, &mut engine);
        host.borrow_mut().device.resize(64 * MIB);
        host.borrow_mut().ignores_queues = true;
        poll(&mut device, &mut engine);
        host.borrow_mut().ignores_queues = false;
        let memory = device.stop().ok().expect("the device is reset");
        let mut device = start(&host, memory);
        assert_eq!(poll(&mut device, &mut engine), Progress::Idle);
        assert_eq!(device.driver().status(), Status::Reached);
        assert_eq!(frames.counts().online, SECTION + Bytes::mib(64).frames());
    }
}
