//! Defines a second device of an engine, which always has requests in flight while the driver of the
//! first one ends and begins again.

use crate::device::Device as MockDevice;
use crate::transport::{self, Host, MockTransport};
use crate::vmm::Vmm;
use crate::{BUDGET, MIB};
use core::time::Duration;
use hotmem::{Budget, Bytes, Hotplug, NoHooks, OneCpu, OnlineType};
use hotmem_virtio::mem::{Device, HotplugMemory, Progress};

pub(crate) type MemDevice = Device<MockTransport>;

/// The size of each device's region, and the address of the first region.
pub(crate) const REGION: u64 = 256 * MIB;

pub(crate) fn hotplug_memory<'f>() -> HotplugMemory<'f, OneCpu> {
    HotplugMemory::new(OnlineType::Movable, Budget { pageblocks: 64 })
}

pub(crate) fn new_device(host: &Host) -> MemDevice {
    Device::new(host.transport(), host.page().dma(0)).unwrap()
}

/// Another device of the same engine, which always has requests in flight.
pub(crate) struct Neighbour<'f> {
    host: Host,
    device: MemDevice,
    memory: HotplugMemory<'f, OneCpu>,
    polls: u64,
}

impl<'f> Neighbour<'f> {
    /// Starts a device with a region above that of the other device.
    pub(crate) fn new() -> Neighbour<'f> {
        let host = transport::host(Vmm::QEMU, MockDevice::new(2 * MIB, 2 * REGION, REGION));
        let device = new_device(&host);
        Neighbour { host, device, memory: hotplug_memory(), polls: 0 }
    }

    fn poll(&mut self, hotplug: &mut Hotplug<'f, OneCpu>, now: Duration, budget: u32) -> Progress {
        let mut hooks = NoHooks;
        self.device.poll(now, budget, &mut self.memory.bind(hotplug, &mut hooks).unwrap())
    }

    /// Makes one step. The device answers late, and its requested size changes when it is reached.
    pub(crate) fn step(&mut self, hotplug: &mut Hotplug<'f, OneCpu>, now: Duration) {
        self.host.borrow_mut().ignores_queues = true;
        self.polls += 1;
        if self.polls.is_multiple_of(3) {
            self.host.serve();
        }
        match self.poll(hotplug, now, 1) {
            Progress::Idle => {
                let target = [REGION, 64 * MIB, 128 * MIB, 0][self.polls as usize % 4];
                self.host.borrow_mut().device.resize(target);
                self.host.borrow_mut().device.requested_seen = target;
            }
            Progress::Ready(failure) => panic!("{failure}"),
            _ => {}
        }
    }

    /// Lets the device reach its requested size. Returns the number of frames that it has plugged.
    pub(crate) fn finish(&mut self, hotplug: &mut Hotplug<'f, OneCpu>, mut now: Duration) -> u64 {
        self.host.borrow_mut().ignores_queues = false;
        self.host.serve();
        loop {
            match self.poll(hotplug, now, BUDGET) {
                Progress::Pending(until) => now = until,
                Progress::Working => {}
                Progress::Idle => break,
                Progress::Ready(failure) => panic!("{failure}"),
            }
        }
        let plugged = self.host.borrow().device.config.plugged_size;
        assert_eq!(plugged, self.host.borrow().device.config.requested_size);
        Bytes(plugged).frames()
    }
}
